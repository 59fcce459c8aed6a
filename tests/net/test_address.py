"""Which URLs the engine asks: every known trick is refused, and only what a setting names is let through besides."""

from __future__ import annotations

import ipaddress

import pytest

from holdfast.errors import Invalid, InvalidSettings
from holdfast.net.address import EgressRules, target_of, unwrapped
from holdfast.settings.settings import EgressSettings

RULES = EgressRules.of(EgressSettings())

REFUSED = [
    "http://127.0.0.1/",
    "http://127.1/",
    "http://127.0.0.1./",
    "http://0/",
    "http://0.0.0.0/",
    "http://2130706433/",
    "http://0x7f000001/",
    "http://0x7f.0.0.1/",
    "http://0177.0.0.1/",
    "http://127.0.0.0x1/",
    "http://[::1]/",
    "http://[::]/",
    "http://[::ffff:127.0.0.1]/",
    "http://[::ffff:7f00:1]/",
    "http://[::127.0.0.1]/",
    "http://[64:ff9b::7f00:1]/",
    "http://[64:ff9b::10.0.0.1]/",
    "http://[64:ff9b:1::1]/",
    "http://[2002:7f00:1::]/",
    "http://[2002:a00:1::1]/",
    "http://[2001:0:7f00:1::]/",
    "http://[fd00::1]/",
    "http://[fe80::1]/",
    "http://[fe80::1%25eth0]/",
    "http://[ff02::1]/",
    "http://[2001:db8::1]/",
    "http://169.254.169.254/latest/meta-data/",
    "http://169.254.170.2/v2/credentials",
    "http://10.0.0.1/",
    "http://172.16.0.1/",
    "http://192.168.0.1/",
    "http://100.64.0.1/",
    "http://198.18.0.1/",
    "http://224.0.0.1/",
    "http://240.0.0.1/",
    "http://255.255.255.255/",
    "http://192.88.99.1/",
    "http://localhost/",
    "http://LOCALHOST./",
    "http://db/",
    "http://metadata.google.internal/",
    "http://printer.local/",
    "http://a.localhost/",
    "http://router.home.arpa/",
    "https://example.com:22/",
    "https://example.com:5432/",
    "https://example.com:0/",
    "https://example.com:99999/",
    "https://example.com:port/",
    "https://user@example.com/",
    "https://user:word@example.com/",
    "https://example.com@127.0.0.1/",
    "http://127.0.0.1#@example.com/",
    "http://127.0.0.1\\@example.com/",
    "http://example.com\t.evil.org/",
    "http://exa mple.com/",
    "http://exämple.com/",
    "http://①②⑦.⓪.⓪.①/",
    "http://example.com/\r\nX-Injected: 1",
    "https://example.com/#fragment",
    "https://-example.com/",
    "https://exa%6dple.com/",
    "https://[::1/",
    "https:///path",
    "https:example.com",
    "//example.com/",
    "file:///etc/passwd",
    "gopher://example.com/",
    "ftp://example.com/",
    "javascript:alert(1)",
    "",
    f"https://example.com/{'a' * 3000}",
    None,
]


@pytest.mark.parametrize("url", REFUSED, ids=lambda url: repr(url)[:50])
def test_a_trick_is_refused_with_its_code(url):
    with pytest.raises(Invalid) as refused:
        target_of(url, RULES)
    assert refused.value.code == "url_not_allowed"


@pytest.mark.parametrize(
    ("url", "host", "port", "path"),
    [
        ("https://example.com", "example.com", 443, "/"),
        ("HTTPS://Example.COM./hook?a=b&c=%20", "example.com", 443, "/hook?a=b&c=%20"),
        ("http://hooks.example.com:8080/x", "hooks.example.com", 8080, "/x"),
        ("https://xn--exmple-cua.com/", "xn--exmple-cua.com", 443, "/"),
        ("http://93.184.215.14/", "93.184.215.14", 80, "/"),
        ("https://[2606:4700:4700::1111]/", "2606:4700:4700::1111", 443, "/"),
        ("https://[2002:5db8:d70e::1]/", "2002:5db8:d70e::1", 443, "/"),
    ],
)
def test_a_plain_public_url_is_taken_apart(url, host, port, path):
    target = target_of(url, RULES)
    assert (target.host, target.port, target.path) == (host, port, path)


@pytest.mark.parametrize(
    ("allowed", "url"),
    [
        (("127.0.0.0/8",), "http://127.0.0.1/"),
        (("10.1.0.0/16",), "http://10.1.2.3/"),
        (("10.1.0.0/16",), "http://[::ffff:10.1.2.3]/"),
        (("fd00::/8",), "http://[fd00::1]/"),
        (("hooks.internal",), "http://hooks.internal/"),
        (("localhost",), "http://LocalHost/"),
    ],
)
def test_a_setting_lets_networks_and_names_through(allowed, url):
    target_of(url, EgressRules.of(EgressSettings(allow=allowed)))


@pytest.mark.parametrize("url", ["http://10.2.0.1/", "http://other.internal/", "http://[::1]/", "http://localhost/"])
def test_a_setting_lets_nothing_else_through(url):
    with pytest.raises(Invalid):
        target_of(url, EgressRules.of(EgressSettings(allow=("10.1.0.0/16", "hooks.internal"))))


def test_ports_can_be_opened_one_by_one_or_all():
    target_of("http://example.com:9000/", EgressRules.of(EgressSettings(ports="9000")))
    target_of("http://example.com:9001/", EgressRules.of(EgressSettings(ports="*")))
    with pytest.raises(Invalid):
        target_of("http://example.com/", EgressRules.of(EgressSettings(ports="9000")))


@pytest.mark.parametrize(
    "settings",
    [
        EgressSettings(allow=("10.0.0.0/33",)),
        EgressSettings(allow=("not a name",)),
        EgressSettings(ports="https"),
        EgressSettings(ports="70000"),
        EgressSettings(proxy="socks5://proxy:1080"),
    ],
)
def test_settings_that_cannot_be_read_are_refused(settings):
    with pytest.raises(InvalidSettings):
        EgressRules.of(settings)


@pytest.mark.parametrize(
    ("outer", "inner"),
    [
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("64:ff9b::a00:1", "10.0.0.1"),
        ("2002:a00:1::", "10.0.0.1"),
        ("10.0.0.1", "10.0.0.1"),
        ("2606:4700::1", "2606:4700::1"),
    ],
)
def test_an_address_inside_another_is_found(outer, inner):
    assert unwrapped(ipaddress.ip_address(outer)) == ipaddress.ip_address(inner)


def test_a_port_that_is_not_open_names_the_setting_that_opens_it():
    with pytest.raises(Invalid) as refused:
        target_of("https://shop.example:9", EgressRules())
    assert "HOLDFAST_EGRESS_PORTS" in refused.value.advice
