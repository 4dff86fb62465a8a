"""Which Mach services a worker may look up. Everything else is refused, and the README says why it is this way round.

The question for each name is: can it be asked to do something outside the sandbox on the worker's behalf (open a
connection, write a file, start a program, show a dialog, hand out a secret)? If so, or if nobody knows, it is not here.
"""

from __future__ import annotations

BASE = (
    "com.apple.FSEvents",  # file watchers
    "com.apple.PowerManagement.control",  # libuv and the JVM ask about sleep; can keep the machine awake
    "com.apple.SystemConfiguration.DNSConfiguration",  # Node reads the resolver's settings at start; no queries here
    "com.apple.SystemConfiguration.configd",  # proxies and interfaces, read-only for who is not root
    "com.apple.bsd.dirhelper",  # confstr(_CS_DARWIN_USER_TEMP_DIR), without which nothing from Xcode starts
    "com.apple.cfprefsd.agent",  # reading preferences; writing is refused by `user-preference-write`
    "com.apple.cfprefsd.daemon",
    "com.apple.logd",  # writing the unified log
    "com.apple.lsd.mapdb",  # which type a file name has (SwiftPM, clang); opening things is another service
    "com.apple.system.logger",
    "com.apple.system.notification_center",  # hearing of changed time zones and users; posting is refused
    "com.apple.system.opendirectoryd.libinfo",  # getpwuid
    "com.apple.system.opendirectoryd.membership",  # getgrouplist
)

LOCAL = ("com.apple.cfprefsd.agent",)
"""The same, where the system registers them by `local-name`."""

OPEN_NETWORK = (
    "com.apple.dnssd.service",  # resolving names
    "com.apple.networkd",
    "com.apple.trustd",
    "com.apple.trustd.agent",  # certificates; fetches intermediates and revocations from any host by itself
)
"""Only when the policy allows every host: each of them makes connections that the proxy never sees."""

FORBIDDEN = {
    "com.apple.CoreServices.coreservicesd": "opens applications",
    "com.apple.SecurityServer": "hands out keychain items",
    "com.apple.coreservices.appleevents": "scripts other applications",
    "com.apple.coreservices.launchservicesd": "opens applications outside the sandbox",
    "com.apple.coreservices.quarantine-resolver": "clears quarantine",
    "com.apple.nsurlsessiond": "downloads and uploads outside the sandbox",
    "com.apple.pasteboard.1": "is the user's clipboard",
    "com.apple.pboard": "is the user's clipboard",
    "com.apple.secd": "hands out keychain items",
    "com.apple.security.agent": "shows password dialogs",
    "com.apple.security.authhost": "shows password dialogs",
    "com.apple.security.keychaind": "hands out keychain items",
    "com.apple.securityd": "hands out keychain items",
    "com.apple.securityd.xpc": "hands out keychain items",
    "com.apple.tccd": "grants privacy permissions",
    "com.apple.windowserver.active": "draws on and reads the screen",
    "com.apple.xpc.launchd.domain.user": "starts jobs outside the sandbox",
}
"""Not a deny list (what is not allowed is denied): names a denial can be explained with, and an operator who asks for
one is told what it does."""

HINTS = {
    "com.apple.trustd.agent": "programs in Go, and what uses the system's TLS, check certificates with it",
    "com.apple.trustd": "some programs check certificates with it",
    "com.apple.dnssd.service": "names are resolved by the proxy; a program that ignores the proxy settings asks here",
    "com.apple.fonts": "text is laid out with it",
}
