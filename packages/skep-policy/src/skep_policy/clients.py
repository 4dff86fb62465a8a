"""What clients must be told to find the proxy, each line for the clients that need it."""

from __future__ import annotations

LOOPBACK = "localhost,127.0.0.1,::1"


def ssh_environment(connect: str) -> dict[str, str]:
    """Variables that lead ssh through `connect`, a command that takes a host and a port and speaks on its stdin and
    stdout. git obeys; for ssh itself there is no variable, so that it is `ssh -o ProxyCommand="$SKEP_PROXY_COMMAND"`.
    """
    command = f"{connect} %h %p"
    return {"SKEP_PROXY_COMMAND": command, "GIT_SSH_COMMAND": f"ssh -o ProxyCommand='{command}'"}


def proxy_environment(port: int, *, transparent: bool, services: bool) -> dict[str, str]:
    """Variables that lead clients to an HTTP proxy on 127.0.0.1:`port`.

    All URLs are `http://`, also of ALL_PROXY: `socks5h://` makes several Python clients and gRPC fail at
    construction. Loopback is direct, unless a loopback service of the host is allowed (`services`) and only the
    proxy can reach it. Private ranges are never listed: what is in them is decided like everything else.
    """
    url = f"http://127.0.0.1:{port}"
    environment = {name: url for upper in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY") for name in (upper, upper.lower())}
    if transparent or not services:
        environment |= {"NO_PROXY": LOOPBACK, "no_proxy": LOOPBACK}
    # npm asks again after 10 and 60 seconds by itself, denied or not.
    environment |= {"npm_config_fetch_retry_mintimeout": "1000", "npm_config_fetch_retry_maxtimeout": "5000"}
    environment["NODE_USE_ENV_PROXY"] = "1"  # Node 22.21 and 24; older ones are served transparently
    if not transparent:
        hosts = " ".join(f"-D{scheme}.proxyHost=127.0.0.1 -D{scheme}.proxyPort={port}" for scheme in ("http", "https"))
        environment["JAVA_TOOL_OPTIONS"] = hosts  # a JVM says so on stderr, so only where nothing else serves it
    return environment
