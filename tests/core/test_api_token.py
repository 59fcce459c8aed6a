"""API tokens as text."""

from __future__ import annotations

import pytest

from holdfast.core.identity.api_token import ID_BYTES, SECRET_BYTES, ApiToken, mint, parse

A_TOKEN = mint(bytes(range(ID_BYTES)), bytes(range(SECRET_BYTES)))


def test_a_token_survives_its_text():
    assert A_TOKEN.text.startswith("hf_000102030405_")
    assert parse(A_TOKEN.text) == A_TOKEN


def test_the_secret_has_at_least_192_bits_and_does_not_show():
    assert SECRET_BYTES * 8 >= 192
    assert A_TOKEN.secret not in repr(A_TOKEN) and A_TOKEN.secret not in str(A_TOKEN)


def test_every_bit_of_the_secret_counts_in_the_digest():
    digests = {mint(bytes(6), bytes(at) + b"\x01" + bytes(31 - at)).digest for at in range(32)}
    assert len(digests) == 32 and all(len(digest) == 32 for digest in digests)


@pytest.mark.parametrize("byte", [0x00, 0xFB, 0xFF])
def test_secrets_of_any_bytes_can_be_told_from_the_id(byte):
    token = mint(bytes([byte] * ID_BYTES), bytes([byte] * SECRET_BYTES))
    assert parse(token.text) == token


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hf_",
        A_TOKEN.text[:-1],
        A_TOKEN.text + "x",
        A_TOKEN.text + "\n",
        A_TOKEN.text.upper(),
        A_TOKEN.text.replace("hf_", "hg_"),
        f" {A_TOKEN.text}",
        "hf_000102030405_" + "é" * 43,
        "hf_00010203040g_" + "a" * 43,
    ],
)
def test_other_texts_are_no_token(text):
    assert parse(text) is None


def test_ids():
    assert ApiToken("a", "b").text == "hf_a_b"
