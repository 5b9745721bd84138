"""`kvctl topology plan` and `topology apply` as processes."""

import json

CONFIG = {r'(?m)^( *)"config": \{\n(?:\1 .*\n)*\1\}': r'\1"config": {...}'}
"""The stream's configuration, which `render` shows."""


def test_plan_shows_changes_and_applies_none(run, raw, unique, tmp_path, snapshot):
    old, new, mirror = unique("OLD"), unique("NEW"), unique("MIRROR")
    raw.create_bucket(old, max_msgs_per_subject=5)
    raw.put(old, "k", b"v")
    file = tmp_path / "topology.yaml"
    title = unique("topology")
    text = (
        f"version: 1\nname: {title}\nbuckets:\n  {old}: {{storage: memory, history: 5, description: x}}\n"
        f"  {new}: {{ttl: 90s}}\n"
        f"mirrors:\n  {mirror}: {{origin: {old}, cluster: nyc}}\n"
    )
    file.write_text(text)
    masks = {old: "OLD", new: "NEW", mirror: "MIRROR", title: "TITLE"}
    masks |= {r"\(\d+ B\)": "(SIZE)", r'"bytes": \d+': '"bytes": SIZE', **CONFIG}
    plan = ("topology", "plan", "-f", str(file))
    assert run(*plan, tty=True).masked(masks) == snapshot
    assert run(*plan, "--exit-code").masked(masks) == snapshot
    assert run(*plan, "-o", "json").masked(masks) == snapshot
    report = run(*plan, "--format", "markdown", "--exit-code")
    assert report.masked(masks) == snapshot
    assert run(*plan, "--format", "html").exit_code == run(*plan, "--format", "markdown", "-o", "json").exit_code == 2
    assert run(*plan, "-o", "name").out.split() == [old, new, mirror]
    file.write_text(text.replace(", cluster", ", history: 1, cluster"))
    out = tmp_path / "topology.plan"
    assert run(*plan, "--out", str(out)).masked(masks) == snapshot
    assert not out.exists()
    forced = run(*plan, "--out", str(out), "--force", "shorter-history", "-o", "json")
    assert (forced.exit_code, json.loads(forced.out)["hazards"][0]["forced"], out.exists()) == (0, True, True)
    assert run(*plan, "--force", "shorter-histories").exit_code == 2
    file.write_text(f"version: 1\nname: {unique('t')}\nbuckets: {{{old}: {{history: 5}}}}\n")
    nothing = run(*plan, "--exit-code")
    assert (nothing.exit_code, nothing.out, nothing.err) == (0, "Nothing to change\n", "")


def test_file_with_variables_is_planned_saved_and_applied(run, raw, unique, tmp_path):
    title, file, out = unique("t"), tmp_path / "topology.yaml", tmp_path / "topology.plan"
    file.write_text(
        f"version: 1\nname: {title}\nbuckets:\n  {title}_${{REGION}}:\n    history: ${{HISTORY:-2}}\n"
        "    max_bytes: ${LIMIT}\n    compress: ${COMPRESS}\n"
    )
    plan = ("topology", "plan", "-f", str(file))
    missing = run(*plan, env={"REGION": "lon", "LIMIT": "topsecret"})
    assert (missing.exit_code, missing.out) == (2, "")
    assert "3 errors" not in missing.err
    assert missing.err.startswith(f"error: {file} has 2 errors:\n  {file}:6:5: ")
    assert "Variable `COMPRESS` is not set" in missing.err
    assert "`${LIMIT}` is not a size" in missing.err
    assert "topsecret" not in missing.err
    given = {"REGION": "lon", "LIMIT": "1MiB", "COMPRESS": "true"}
    assert run(*plan, "--out", str(out), env=given).exit_code == 0
    applied = run("topology", "apply", str(out), "--yes")  # a saved plan needs no variables
    assert applied.exit_code == 0, applied.err
    config = raw.api(f"STREAM.INFO.KV_{title}_lon")["config"]
    assert (config["max_msgs_per_subject"], config["max_bytes"], config["compression"]) == (2, 1 << 20, "s2")
    file.write_text(f"version: 1\nbuckets: {{{title}: {{cluster: ${{REGION}}}}}}")
    assert 'hint: Quote a variable that stands inside `{...}` or `[...]`: `"${NAME}"`' in run(*plan).err


def test_entries_are_created_where_absent_and_never_overwritten(run, raw, unique, tmp_path, snapshot):
    bucket, mirror, file = unique("B"), unique("M"), tmp_path / "topology.yaml"
    file.write_text(
        f"version: 1\nname: {unique('t')}\nbuckets:\n  {bucket}:\n    entries:\n      app.mode: prod\n"
        "      app.port: '8080'\n      app.secret: ${SECRET}\n      empty: ''\n"
        f"mirrors:\n  {mirror}: {{origin: {bucket}}}\n"
    )
    env, masks = {"SECRET": "hunter2"}, {bucket: "BUCKET", mirror: "MIRROR"}
    plan = ("topology", "plan", "-f", str(file))
    apply = ("topology", "apply", "-f", str(file), "--yes")
    assert run(*plan, tty=True, env=env).masked(masks) == snapshot
    assert run(*apply, env=env).exit_code == 0
    values = run("get", bucket, "app.*", "--columns", "key,value").out
    assert values == "app.mode\tprod\napp.port\t8080\napp.secret\thunter2\n"
    assert raw.api(f"STREAM.INFO.{mirror}")["state"]["messages"] == 4  # the mirror waits for entries, too
    assert run(*plan, "--exit-code", env={"SECRET": "other"}).exit_code == 0
    raw.put(bucket, "app.mode", b"dev")
    run("delete", bucket, "app.port")
    changed = run(*plan, "-o", "json", env=env)
    (change,) = json.loads(changed.out)["changes"]
    assert (change["action"], change["entries"], change["differences"]) == ("change", [{"key": "app.port"}], [])
    assert "hunter2" not in changed.out + changed.err
    assert run(*plan, tty=True, env=env).masked(masks) == snapshot
    assert run(*apply, env=env).exit_code == 0
    assert run("get", bucket, "app.mode", "app.port", "--columns", "value").out == "dev\n8080\n"
    assert run(*apply, tty=True, env=env).out == "Nothing to change\n"


def test_saved_plan_creates_entries_after_it_was_interrupted(run, raw, unique, tmp_path):
    bucket, file, out = unique("B"), tmp_path / "topology.yaml", tmp_path / "topology.plan"
    text = f"version: 1\nname: {unique('t')}\nbuckets:\n  {bucket}:\n    history: 2\n"
    file.write_text(f"{text}    entries:\n      a: '1'\n      b: '2'\n")
    assert run("topology", "plan", "-f", str(file), "--out", str(out)).exit_code == 0
    file.write_text(text)
    run("topology", "apply", "-f", str(file), "--yes")  # as if killed before the entries
    raw.put(bucket, "a", b"mine")
    apply = ("topology", "apply", str(out), "--yes")
    assert run(*apply).exit_code == 0
    assert run("get", bucket, "a", "b", "--columns", "value").out == "mine\n2\n"
    assert run(*apply, tty=True).out == "Nothing to change\n"


def test_apply_asks_first_and_changes_nothing_the_second_time(run, raw, unique, tmp_path, snapshot):
    bucket, mirror = unique("ORDERS"), unique("MIRROR")
    file = tmp_path / "topology.yaml"
    title = unique("topology")
    file.write_text(f"version: 1\nname: {title}\nbuckets:\n  {bucket}:\nmirrors:\n  {mirror}: {{origin: {bucket}}}\n")
    masks = {"MIRROR": mirror, "ORDERS": bucket, "TITLE": title}
    apply = ("topology", "apply", "-f", str(file))
    assert run(*apply).masked(**masks) == snapshot
    assert run(*apply, stdin=b"n\n", tty=True).exit_code == 1
    assert run(*apply, "--dry-run").exit_code == 0
    assert "error" in raw.api(f"STREAM.INFO.KV_{bucket}")
    assert run(*apply, stdin=b"y\n", tty=True).masked({r"in \d+\.\d s": "in SECONDS"}, **masks) == snapshot
    assert run(*apply, tty=True).masked(**masks) == snapshot
    again = run(*apply, "--yes", "-o", "json")
    assert (again.exit_code, json.loads(again.out)["changes"]) == (0, [])
    file.write_text(file.read_text().replace(f"  {bucket}:", f"  {bucket}: {{history: 2}}"))
    assert run(*apply, "--read-only", "--yes").exit_code == 1
    assert run(*apply, "--yes", "-o", "json").masked(CONFIG, **masks) == snapshot


def test_apply_asks_for_the_name_of_a_recreated_bucket(run, raw, unique, tmp_path, snapshot):
    bucket = unique("ORDERS")
    raw.create_bucket(bucket)
    raw.put(bucket, "k", b"v")
    file = tmp_path / "topology.yaml"
    file.write_text(f"version: 1\nname: {unique('t')}\nbuckets: {{{bucket}: {{storage: memory}}}}\n")
    apply = ("topology", "apply", "-f", str(file))
    masks = {bucket: "ORDERS", r"\(\d+ B\)": "(SIZE)"}
    assert run(*apply, "--yes").masked(masks) == snapshot
    assert run(*apply, stdin=b"y\nno\n", tty=True).masked(masks) == snapshot
    assert raw.api(f"STREAM.INFO.KV_{bucket}")["state"]["messages"] == 1
    assert run(*apply, "--yes", "--confirm", "OTHER", "--confirm", bucket).exit_code == 0
    assert raw.api(f"STREAM.INFO.KV_{bucket}")["config"]["storage"] == "memory"


def test_saved_plan_is_applied_once_and_refused_when_stale(run, raw, unique, tmp_path, snapshot):
    bucket, other = unique("ORDERS"), unique("STOCK")
    file, saved = tmp_path / "topology.yaml", tmp_path / "topology.plan"
    file.write_text(f"version: 1\nname: {unique('t')}\nbuckets: {{{bucket}: {{history: 2}}, {other}: {{}}}}\n")
    masks = {"ORDERS": bucket, "STOCK": other}
    assert run("topology", "plan", "-f", str(file), "--out", str(saved)).exit_code == 0
    raw.create_bucket(bucket, max_msgs_per_subject=9)
    assert run("topology", "apply", str(saved), "--yes").masked(**masks) == snapshot
    raw.api(f"STREAM.DELETE.KV_{bucket}")
    assert run("topology", "apply", str(saved), "--yes").exit_code == 0
    assert run("topology", "apply", str(saved), "--yes").out == "Nothing to change\n"


def test_plan_does_not_overwrite_its_topology_file(run, tmp_path):
    file = tmp_path / "topology.yaml"
    file.write_text("version: 1\n")
    assert run("topology", "plan", "-f", str(file), "--out", str(tmp_path / "." / "topology.yaml")).exit_code == 2
    assert file.read_text() == "version: 1\n"


def test_apply_with_invalid_arguments_is_a_usage_error(run, tmp_path):
    plan = tmp_path / "x.plan"
    plan.write_text('{"kvctl": "plan", "version": 2}')
    newer = run("topology", "apply", "--yes", str(plan))
    assert (newer.exit_code, "version `2`" in newer.err) == (2, True)
    plan.write_text('{"kvctl": "plan", "vers')
    assert run("topology", "apply", "--yes", str(plan)).exit_code == 2
    assert run("topology", "apply", "--yes", str(plan), "--prune").exit_code == 2


def test_plan_notes_a_renamed_replica_and_that_prune_removes_the_hazard_of_the_old_one(run, unique, tmp_path):
    bucket, old, new, file = unique("ORDERS"), unique("OLD"), unique("NEW"), tmp_path / "topology.yaml"
    text = f"version: 1\nname: {unique('topology')}\nbuckets: {{{bucket}: {{history: %s}}}}\n"
    text += f"mirrors: {{%s: {{origin: {bucket}}}}}\n"
    file.write_text(text % (2, old))
    assert run("topology", "apply", "-f", str(file), "--yes").exit_code == 0
    file.write_text(text % (2, new))
    note = f"`{new}` has the origin and settings of `{old}`, no longer in the file: its data is copied again"
    assert note in run("topology", "plan", str(file)).err
    file.write_text(text % (5, new))
    refused = run("topology", "plan", str(file))
    assert (refused.exit_code, f"`--prune` deletes `{old}`, which is no longer in the file" in refused.err) == (1, True)
    assert run("topology", "plan", str(file), "--prune").exit_code == 0
