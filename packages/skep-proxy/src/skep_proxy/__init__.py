"""A filtering egress proxy: CONNECT, HTTP/1.1 and SOCKS5, decided by domain rules."""
