"""Real clients: what each is called, what it needs, and the shell words with which it prints the marker of an origin.

In `script`: {host}, {http}, {https}, {database}, {lines} and {ssh} (ports), {files} (a folder with ca.pem, keys and
programs), {python} (ours, with the libraries of the dev group), {user}.
"""

from __future__ import annotations

import sys
from typing import NamedTuple

FETCH = "'https://{host}:{https}/hello'"
SSH_OPTIONS = (
    "-o BatchMode=yes -o IdentitiesOnly=yes -i {files}/key -o UserKnownHostsFile={files}/known_hosts "
    "-o GlobalKnownHostsFile=/dev/null -o StrictHostKeyChecking=yes -o ConnectionAttempts=1"
)
SSH = 'ssh ${{SKEP_PROXY_COMMAND:+-o "ProxyCommand=$SKEP_PROXY_COMMAND"}} ' + SSH_OPTIONS
JAVA = "java -Djavax.net.ssl.trustStore={files}/trust.p12 -Djavax.net.ssl.trustStorePassword=changeit -cp {files} Get"
APT = (
    "mkdir -p apt/lists/partial apt/cache/archives/partial && "
    "echo 'deb [trusted=yes] http://{host}:{http}/apt ./' >apt/{host}.list && "
    "set -- -q -o Dir::State=$PWD/apt -o Dir::State::Lists=$PWD/apt/lists -o Dir::Cache=$PWD/apt/cache "
    "-o Dir::Etc::SourceList=$PWD/apt/{host}.list -o Dir::Etc::SourceParts=/dev/null -o APT::Sandbox::User= "
    '-o APT::Update::Error-Mode=any && apt-get "$@" update && apt-cache "$@" show skepling'
)


class Client(NamedTuple):
    """`explicit` says how it does where only the proxy's own port leads out: by the variables, by a helper of ours, or
    not at all.
    """

    name: str
    script: str
    needs: tuple[str, ...] = ()
    """Programs; a name that begins with `-m ` is a module of the system's Python."""
    version: str = ""
    explicit: str = "yes"
    asks_again: bool = False
    """Waits for seconds and asks again when it is denied."""


def python(code: str) -> str:
    return '{python} -c "' + code + '"'


CLIENTS = (
    Client("curl", f"curl -sS {FETCH}", ("curl",), "curl --version"),
    Client("wget", f"wget -q -O - --ca-certificate={{files}}/ca.pem {FETCH}", ("wget",), "wget --version"),
    Client(
        "git over https",
        "git clone -q https://{host}:{https}/repo.git clone && cat clone/hello",
        ("git",),
        "git --version",
    ),
    Client(
        "git over ssh",
        'GIT_SSH_COMMAND="${{GIT_SSH_COMMAND:-ssh}} '
        + SSH_OPTIONS
        + '" git clone -q ssh://{user}@{host}:{ssh}{files}/web/repo.git clone && cat clone/hello',
        ("git", "ssh", "sshd"),
        "ssh -V",
        "helper",
    ),
    Client("ssh", SSH + " -p {ssh} {user}@{host} cat {files}/web/hello", ("ssh", "sshd"), "ssh -V", "helper"),
    Client(
        "pip",
        "/usr/bin/python3 -m pip install -q --disable-pip-version-check --no-cache-dir --cert {files}/ca.pem "
        "--index-url https://{host}:{https}/simple/ --target target skepling==1.0 && python3 target/skepling.py",
        ("-m pip",),
        "/usr/bin/python3 -m pip --version",
        asks_again=True,
    ),
    Client(
        "uv",
        "uv pip install -q --no-cache --no-config --python {python} "
        "--default-index https://{host}:{https}/simple/ --target target skepling==1.0 && python3 target/skepling.py",
        ("uv",),
        "uv --version",
        asks_again=True,
    ),
    Client(
        "npm",
        "echo '{{}}' >package.json && "
        "npm install --silent --no-audit --no-fund --cafile {files}/ca.pem --cache $PWD/cache "
        "--registry https://{host}:{https}/npm/ skepling && "
        "node node_modules/skepling",
        ("npm", "node"),
        "npm --version",
        asks_again=True,
    ),
    Client(
        "apt",
        APT,
        ("apt-get",),
        "apt-get --version",
    ),
    Client(
        "Node fetch",
        'node -e "fetch(' + FETCH + ').then(r => r.text()).then(console.log)"',
        ("node",),
        "node --version",
        "Node 24",
    ),
    Client(
        "Node https",
        "node -e \"require('https').get(" + FETCH + ', r => r.pipe(process.stdout))"',
        ("node",),
        "node --version",
        "Node 24",
    ),
    Client(
        "Python urllib", python("import urllib.request as r; print(r.urlopen(" + FETCH + ").read())"), (), "{python} -V"
    ),
    Client(
        "requests",
        python("import requests; print(requests.get(" + FETCH + ").text)"),
        (),
        "{python} -c 'import requests; print(requests.__version__)'",
    ),
    Client(
        "httpx",
        python("import httpx; print(httpx.get(" + FETCH + ").text)"),
        (),
        "{python} -c 'import httpx; print(httpx.__version__)'",
    ),
    Client(
        "aiohttp",
        "{python} {files}/aiohttp_get.py " + FETCH,
        (),
        "{python} -c 'import aiohttp; print(aiohttp.__version__)'",
        "no",
    ),
    Client(
        "aiohttp, trust_env",
        "{python} {files}/aiohttp_get.py " + FETCH + " trust_env",
        (),
        "{python} -c 'import aiohttp; print(aiohttp.__version__)'",
    ),
    Client(
        "websockets",
        "{python} {files}/websocket_get.py wss://{host}:{https}/ws",
        (),
        "{python} -c 'import websockets; print(websockets.__version__)'",
    ),
    Client(
        "Java HttpClient",
        JAVA + " client " + FETCH,
        ("javac", "java", "keytool"),
        "java --version",
    ),
    Client(
        "Java HttpURLConnection",
        JAVA + " connection " + FETCH,
        ("javac", "java", "keytool"),
        "java --version",
    ),
    Client("Go net/http", "{files}/get_go " + FETCH, ("go",), "go version"),
    Client(
        "go mod download",
        "export GOPATH=$PWD/go GOPROXY=https://{host}:{https}/go GONOSUMDB='*' GOFLAGS=-modcacherw && "
        "mkdir -p m && cd m && printf 'module m\\nrequire skepling.test v1.0.0\\n' >go.mod && "
        "go mod download skepling.test && cat $GOPATH/pkg/mod/skepling.test@v1.0.0/hello.go",
        ("go",),
        "go version",
    ),
    Client(
        "psql",
        "psql -At -c 'select marker from skepling' "
        "'host={host} port={database} user=u dbname=postgres sslmode=disable'",
        ("psql",),
        "psql --version",
        "no",
    ),
    Client("raw TCP, C", "{files}/lines_c {host} {lines}", ("gcc",), "gcc --version", "no"),
    Client("raw TCP, Rust", "{files}/lines_rust {host} {lines}", ("rustc",), "rustc --version", "no"),
    Client("raw TCP, Go", "{files}/lines_go {host} {lines}", ("go",), "go version", "no"),
)

PROGRAMS = {
    "aiohttp_get.py": """import asyncio, sys
import aiohttp
async def main() -> None:
    async with aiohttp.ClientSession(trust_env=len(sys.argv) > 2) as session, session.get(sys.argv[1]) as answer:
        print(await answer.text())
asyncio.run(main())
""",
    # In one thread: a TLS connection is used by one at a time (OpenSSL's threads(7)).
    "websocket_get.py": """import asyncio, sys
from websockets.asyncio.client import connect
async def main() -> None:
    async with connect(sys.argv[1]) as socket:
        await socket.send("")
        print(await socket.recv())
asyncio.run(main())
""",
    "Get.java": """import java.net.*;
import java.net.http.*;
public class Get {
    public static void main(String[] words) throws Exception {
        URI uri = URI.create(words[1]);
        if (words[0].equals("client")) {
            HttpRequest request = HttpRequest.newBuilder(uri).build();
            System.out.println(HttpClient.newHttpClient().send(request, HttpResponse.BodyHandlers.ofString()).body());
        } else {
            System.out.write(uri.toURL().openConnection().getInputStream().readAllBytes());
            System.out.flush();
        }
    }
}
""",
    "lines.c": """#include <netdb.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>
int main(int count, char **words) {
    struct addrinfo *found, hints = {.ai_socktype = SOCK_STREAM};
    int code = getaddrinfo(words[1], words[count - 1], &hints, &found);
    if (code) { fprintf(stderr, "%s\\n", gai_strerror(code)); return 1; }
    int fd = socket(found->ai_family, SOCK_STREAM, 0);
    if (connect(fd, found->ai_addr, found->ai_addrlen)) { perror("connect"); return 1; }
    char text[256];
    write(fd, "who are you\\n", 12);
    ssize_t size = read(fd, text, sizeof text);
    if (size <= 0) { perror("read"); return 1; }
    return write(1, text, size) != size;
}
""",
    "lines.rs": """use std::io::{Read, Write};
fn main() {
    let words: Vec<String> = std::env::args().collect();
    let mut stream = std::net::TcpStream::connect(format!("{}:{}", words[1], words[2])).unwrap();
    stream.write_all(b"who are you\\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    print!("{}", text);
}
""",
    "get.go": """package main
import ("io"; "net/http"; "os")
func main() {
    answer, err := http.Get(os.Args[1])
    if err != nil { panic(err) }
    if _, err = io.Copy(os.Stdout, answer.Body); err != nil { panic(err) }
}
""",
    "lines.go": """package main
import ("fmt"; "io"; "net"; "os")
func main() {
    stream, err := net.Dial("tcp", os.Args[1] + ":" + os.Args[2])
    if err != nil { panic(err) }
    fmt.Fprint(stream, "who are you\\n")
    text, err := io.ReadAll(stream)
    if err != nil { panic(err) }
    fmt.Print(string(text))
}
""",
}

COMPILERS = {
    "gcc": "gcc -o lines_c lines.c",
    "rustc": "rustc -o lines_rust lines.rs",
    "go": "go build -o lines_go lines.go && go build -o get_go get.go",
    "javac": "javac Get.java",
    "keytool": "keytool -importcert -noprompt -alias ca -file ca.pem -keystore trust.p12 -storetype PKCS12 "
    "-storepass changeit",
}

PYTHON = sys.executable
