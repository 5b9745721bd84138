"""`kvctl topology import` as a process."""

import yaml

TERRAFORM = """
variable "ttl" { default = 60 }

resource "jetstream_kv_bucket" "orders" {
  name = "ORDERS"
  ttl  = 3600
}

resource "jetstream_stream" "edge" {
  name                 = "KV_EDGE"
  max_msgs_per_subject = 5
  deny_delete          = true
  ack                  = false
  provider             = jetstream.leaf

  source {
    name = "KV_ORDERS"
    external {
      api = "$JS.hub.API"
    }
    subject_transform {
      source      = "$KV.ORDERS.NEW.>"
      destination = "$KV.EDGE.>"
    }
  }
}

resource "jetstream_stream" "variable" {
  name    = "KV_V"
  max_age = var.ttl
}

resource "jetstream_stream" "events" {
  name     = "EVENTS"
  subjects = ["events.>"]
}

resource "jetstream_consumer" "c" {
  stream_id = jetstream_stream.events.id
}
"""
NACK = """
apiVersion: jetstream.nats.io/v1beta2
kind: KeyValue
metadata: {name: orders}
spec: {bucket: ORDERS, history: 5, ttl: 720h, preventDelete: true}
---
apiVersion: jetstream.nats.io/v1beta2
kind: Stream
metadata: {name: orders-nyc}
spec: {name: ORDERS_NYC, mirror: {name: KV_ORDERS}, storage: file, maxMsgsPerSubject: 5, maxAge: 720h,
       discard: new, denyDelete: true, allowRollup: true, allowDirect: true, mirrorDirect: true, account: nyc}
---
apiVersion: v1
kind: Secret
metadata: {name: creds}
"""


def test_import_of_terraform_names_what_it_leaves_out(run, tmp_path, snapshot):
    (tmp_path / "main.tf").write_text(TERRAFORM)
    (tmp_path / "more.tf.json").write_text('{"resource": {"jetstream_kv_bucket": {"b": {"name": "B", "history": 1}}}}')
    (tmp_path / "terraform.tfstate").write_text("{")
    assert run("topology", "import", "--format", "terraform", str(tmp_path)) == snapshot
    assert run(
        "topology", "import", "--format", "terraform", "-", "-o", "name", "-q", stdin=TERRAFORM.encode()
    ).out == ("ORDERS\nEDGE\n")


def test_import_of_resources_makes_a_file_that_kvctl_reads(run, snapshot):
    result = run("topology", "import", "--format", "nack", "-", stdin=NACK.encode())
    assert result == snapshot
    rendered = run("topology", "render", "-f", "-", "-o", "name", stdin=result.stdout)
    assert rendered.out.split() == ["KV_ORDERS", "ORDERS_NYC"]
    document = run("topology", "import", "--format", "nack", "-", "-o", "json", stdin=NACK.encode()).stdout
    assert yaml.safe_load(document) == yaml.safe_load(result.stdout)


def test_import_of_nothing_useful_fails(run, tmp_path, snapshot):
    (tmp_path / "events.json").write_text('{"name": "EVENTS", "subjects": ["e"]}')
    assert run("topology", "import", "--format", "nats", str(tmp_path)) == snapshot
    assert run("topology", "import", "--format", "nack", str(tmp_path)) == snapshot
    assert run("topology", "import", "--format", "terraform", str(tmp_path)) == snapshot
    assert run("topology", "import", "--format", "terraform", "-", stdin=b"a = [").masked() == snapshot
    assert run("topology", "import", "--format", "yaml", str(tmp_path)) == snapshot
    assert run("topology", "import", "--format", "nats", str(tmp_path / "none")).exit_code == 2
    assert run("topology", "import", "--format", "nats").exit_code == 2
