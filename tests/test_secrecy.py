"""What gives access is masked wherever it stands, and what only looks a little like it is left alone."""

from __future__ import annotations

import re

import pytest

from gradforensics.secrecy import HIDDEN, is_secret, masked, of_setting, without_keys, without_secrets

# made up, in the shapes that services publish for their keys
KEYS = (
    "hf_" + "aB3dE5gH7jK9mN1pQ2rS4tU6vW8xY0zA1b",
    "sk-proj-" + "abcdefghijklmnopqrstuvwxyz0123",
    "sk-ant-api03-" + "abcdefghijklmnopqrstuvwxyz0123",
    "ghp_" + "abcdefghijklmnopqrstuvwxyz0123456789",
    "github_pat_" + "11ABCDEFG0abcdefghijkl_mnopqrstuv",
    "glpat-" + "abcdefghij0123456789",
    "xoxb-" + "1234567890-abcdefghij",
    "AKIA" + "IOSFODNN7EXAMPLE",
    "AIza" + "SyA1234567890abcdefghijklmnopqrstuv",
    "eyJhbGciOiJIUzI1NiJ9" + ".eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w",
    "nvapi-" + "abcdefghijklmnopqrstuvwxyz01234567890123",
    "wandb_v1_" + "abcdefghijklmnopqrstuvwxyz0123",
    "local-" + "0123456789abcdef0123456789abcdef01234567",
)


@pytest.mark.parametrize("key", KEYS, ids=[key[:8] for key in KEYS])
def test_the_keys_of_services_are_known_by_their_shape(key: str) -> None:
    for text in (f"login with {key} now", f'{{"x": "{key}"}}', f"<code>{key}</code>", f"--x={key}\n", key):
        assert key not in masked(text)
        assert key not in without_keys(text)
        assert HIDDEN in without_keys(text)


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("api_key=abcdef123456 lr=0.1", "abcdef123456"),
        ("export WANDB_API_KEY='0badc0de'", "0badc0de"),
        ("{'hub_token': 'abcd1234', 'lr': 1}", "abcd1234"),
        ("python train.py --password hunter22 --lr 3", "hunter22"),
        ("python train.py --db-password=hunter22", "hunter22"),
        ("Authorization: Bearer abcdefghijklmnop", "abcdefghijklmnop"),
        ("clone https://jane:pw1234@git.example.org/x", "pw1234"),
        ("GET s3://b/x?X-Amz-Signature=deadbeefdeadbeef&x=1", "deadbeefdeadbeef"),
        ("machine api.wandb.ai login user password 0123456789ab", "0123456789ab"),
        ("wandb: logging in with key 0123456789abcdef0123456789abcdef01234567", "0123456789abcdef"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIEow\n-----END RSA PRIVATE KEY-----", "MIIEow"),
        ("connection_string: 'AccountName=x'", "AccountName"),
    ],
)
def test_what_stands_around_a_value_tells_that_it_gives_access(text: str, secret: str) -> None:
    assert secret not in masked(text)
    assert masked(masked(text)) == masked(text)


@pytest.mark.parametrize(
    "text",
    [
        "step 10: loss 2.3, lr 1e-4, grad_norm 0.5",
        "eos_token=<|im_end|> pad_token=[PAD] bos_token: <s>",
        "num_tokens: 12345678, tokens_per_second=98765, next_token: 42",
        "git commit 0123456789abcdef0123456789abcdef01234567",
        "label_key=input_ids image_key=images/train",
        "password authentication failed for user",
        "sha256 e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        "tcp://node-3:29500 https://example.org/docs?page=3",
        "key error: 'model.layers.0.attn.key.weight'",
        "model sk-learn-baseline-with-a-long-name-v2 of sk-image-segmentation-models-large",
        "KeyError: 'state'",
    ],
)
def test_ordinary_lines_of_logs_stay_as_they_are(text: str) -> None:
    assert masked(text) == text


def test_settings_are_judged_by_their_names_and_searched_inside() -> None:
    assert is_secret("hub_token", "abc")
    assert is_secret("args.wandb.api_key", "abc")
    assert is_secret("token", "a1b2c3d4e5f6g7h8i9j0k")
    assert not is_secret("eos_token", "<|endoftext|>")
    assert not is_secret("pad_token", "endoftext")
    assert not is_secret("image_key", "images/train")
    assert not is_secret("hub_token", "None")
    nested = {"lr": 0.1, "hub": {"hub_token": "abc", "names": ["a", "--api_key=xyz123"]}}
    assert of_setting("args", nested) == {
        "lr": 0.1,
        "hub": {"hub_token": HIDDEN, "names": ["a", f"--api_key={HIDDEN}"]},
    }


def test_arguments_of_a_program() -> None:
    given = ["--lr", "0.1", "--api_key", "abc", "--hub-token=xyz", "--name", "token", KEYS[0]]
    assert list(without_secrets(given)) == [
        "--lr", "0.1", "--api_key", HIDDEN, f"--hub-token={HIDDEN}", "--name", "token", HIDDEN,
    ]  # fmt: skip


def test_long_hostile_lines_cost_no_more_than_their_length() -> None:
    """Nested repetitions would take minutes here; the searches are bounded, so this ends."""
    for piece in ("a_", "api_", "--key-", "wandb ", "x://", "?a&", "eyJ", "Bearer "):
        text = piece * 60_000 + "token"
        assert len(masked(text)) > 0
    assert re.fullmatch(r"(?:x)+", masked("x" * 10**6))
