"""The deployment's proxy for real: nginx with TLS and tokens before two guarded web servers."""

import base64
import http.client
import json
import re
import shutil
import socket
import ssl
import subprocess

import pytest

from dpsynth_assets_tests.children import free_port, until
from dpsynth_assets_tests.security.served import JSON, LAUNCH, ROOT, Server, answer_to_a_handshake

pytestmark = pytest.mark.slow

TEMPLATE = ROOT / "deploy" / "proxy" / "default.conf.template"
UI, AUDIT = "synthetic.example.org", "audit.example.org"
TOKENS = {"stewards": "steward-token", "auditors": "auditor-token"}
READS = (
    ("GET", "/", None),
    ("GET", "/server_info", None),
    ("GET", "/download_debug/RUN", None),
    ("GET", "/logs/RUN/compute_logs/x/out", None),
    ("GET", "/graphql", None),
    ("POST", "/graphql", json.dumps({"query": "{ version }"})),
    ("POST", "/graphql", json.dumps({"query": LAUNCH})),
    ("POST", "/report_asset_materialization/released", "{}"),
)


def authorised(name, token):
    return {"Authorization": "Basic " + base64.b64encode(f"{name}:{token}".encode()).decode()}


STEWARD = authorised("ada", TOKENS["stewards"])
AUDITOR = authorised("ada", TOKENS["auditors"])


class Proxy:
    """nginx with the template's variables filled in, as its image fills them in."""

    def __init__(self, folder, steward, auditor):
        self.port = free_port()
        self.steward, self.auditor = steward, auditor
        for file, token in TOKENS.items():
            command = ["openssl", "passwd", "-6", token]
            told = subprocess.run(command, capture_output=True, text=True, check=True)
            (folder / file).write_text(f"ada:{told.stdout.strip()}\n")
        _certify(folder)
        values = {
            "DPSYNTH_UI_HOST": UI,
            "DPSYNTH_AUDIT_HOST": AUDIT,
            "DPSYNTH_UI_SERVER": steward.name,
            "DPSYNTH_AUDIT_SERVER": auditor.name,
            "DPSYNTH_PROXY_PORT": f"127.0.0.1:{self.port}",
            "DPSYNTH_PROXY_FOLDER": str(folder),
        }
        filled = re.sub(r"\$\{(\w+)\}", lambda match: values[match[1]], TEMPLATE.read_text())
        paths = "".join(
            f"{kind}_temp_path {folder}/{kind};"
            for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        (folder / "nginx.conf").write_text(
            f"daemon off; worker_processes 1; pid {folder}/pid; error_log {folder}/log; user root;"
            f"events {{}} http {{ access_log off; {paths} {filled} }}"
        )
        self.process = subprocess.Popen(["nginx", "-c", str(folder / "nginx.conf")])
        until(self.is_open, "nginx did not open its port")

    def is_open(self):
        assert self.process.poll() is None, "nginx refused its configuration"
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=60).close()
        except OSError:
            return False
        return True

    def send(self, method, path, host, headers=None, body=None):
        context = ssl._create_unverified_context()
        connection = http.client.HTTPSConnection(
            "127.0.0.1", self.port, timeout=60, context=context
        )
        try:
            connection.request(method, path, body, {"Host": host, **(headers or {})})
            answer = connection.getresponse()
            return answer.status, answer.read().decode(errors="replace")
        finally:
            connection.close()

    def shake_hands(self, host, **headers):
        context = ssl._create_unverified_context()
        with (
            socket.create_connection(("127.0.0.1", self.port), timeout=60) as plain,
            context.wrap_socket(plain) as connection,
        ):
            return answer_to_a_handshake(connection, {"Host": host, **headers})

    def stop(self):
        self.process.terminate()
        self.process.wait(60)


def _certify(folder):
    """A certificate of its own, as a test needs it."""
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={UI}"]
    command += ["-keyout", str(folder / "certificate.key"), "-out", str(folder / "certificate.pem")]
    subprocess.run(command, capture_output=True, check=True)


@pytest.fixture(scope="module")
def proxy(tmp_path_factory):
    if shutil.which("nginx") is None or shutil.which("openssl") is None:
        pytest.skip("the proxy needs nginx and openssl: apt-get install nginx-light openssl")
    hosts = {"DPSYNTH_UI_HOSTS": f"{UI},{AUDIT}"}
    servers = [Server(tmp_path_factory.mktemp("steward"), **hosts)]
    started = None
    try:
        servers.append(Server(tmp_path_factory.mktemp("auditor"), "--read-only", **hosts))
        for server in servers:
            server.wait()
        folder = tmp_path_factory.mktemp("proxy")
        started = Proxy(folder, *servers)
        yield started
    finally:
        if started is not None:
            started.stop()
        for server in servers:
            server.stop()


@pytest.mark.parametrize("host", [UI, AUDIT])
@pytest.mark.parametrize("credentials", [{}, authorised("ada", "guess"), authorised("eve", "")])
@pytest.mark.parametrize("read", READS)
def test_a_neighbour_without_a_token_reads_nothing(proxy, host, credentials, read):
    method, path, body = read
    before = proxy.steward.state()
    path = path.replace("RUN", proxy.steward.run_id)
    status, text = proxy.send(method, path, host, {**JSON, **credentials}, body)
    assert status == 401
    assert "dagster" not in text.lower()
    assert proxy.steward.state() == before


@pytest.mark.parametrize("host", [UI, AUDIT])
def test_a_socket_without_a_token_is_refused(proxy, host):
    assert " 401 " in proxy.shake_hands(host)


def test_a_token_of_auditors_opens_their_server_alone(proxy):
    asked = json.dumps({"query": "{ permissions { permission value } }"})
    assert proxy.send("POST", "/graphql", UI, {**JSON, **AUDITOR}, asked)[0] == 401
    status, text = proxy.send("POST", "/graphql", AUDIT, {**JSON, **AUDITOR}, asked)
    assert status == 200
    assert not any(one["value"] for one in json.loads(text)["data"]["permissions"])
    before = proxy.auditor.state()
    launch = json.dumps({"query": LAUNCH})
    assert "Unauthorized" in proxy.send("POST", "/graphql", AUDIT, {**JSON, **AUDITOR}, launch)[1]
    assert proxy.auditor.state() == before


def test_a_steward_reads_launches_and_listens(proxy):
    own = {"Origin": f"https://{UI}", "Sec-Fetch-Site": "same-origin", **STEWARD}
    # The first page leads to the graph.
    assert proxy.send("GET", "/", UI, {"Accept": "text/html", **STEWARD})[0] == 307
    assert " 101 " in proxy.shake_hands(UI, **own)
    launch = json.dumps({"query": LAUNCH})
    status, text = proxy.send("POST", "/graphql", UI, {**JSON, **own}, launch)
    assert (status, "LaunchRunSuccess" in text) == (200, True)


def test_another_site_cannot_use_a_token_that_the_browser_keeps(proxy):
    """Browsers add credentials they know to requests of other sites."""
    before = proxy.steward.state()
    foreign = {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site", **STEWARD}
    launch = json.dumps({"query": LAUNCH})
    assert proxy.send("POST", "/graphql", UI, {**JSON, **foreign}, launch)[0] == 403
    assert proxy.send("GET", "/graphql?query=mutation{x}", UI, foreign)[0] == 403
    assert " 403 " in proxy.shake_hands(UI, **foreign)
    assert proxy.steward.state() == before


def test_a_name_that_nobody_declared_gets_no_answer(proxy):
    with pytest.raises((http.client.RemoteDisconnected, ConnectionError)):
        proxy.send("GET", "/", "evil.example", STEWARD)
