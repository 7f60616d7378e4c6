"""The strict reader of rule files: what it refuses, and that it says where."""

import pytest

from gradforensics.diagnosis.examples import check_example, values_of
from gradforensics.diagnosis.rules import fill, load_rule, load_rules
from gradforensics.diagnosis.vocabulary import Fact
from gradforensics.errors import RuleError

HEAD = """
id = "TT01"
slug = "test"
family = "test"
title = "A test"
severity = "S2"
what = "From step {onset}."
why = "Because."
fix = ["Do it."]
"""
SIGN = """
[parameters]
share = { value = 10, unit = "times", source = "made up for this test" }
[[sign]]
check = "lr_identically_zero"
strength = "suspect"
with = { share = "$share" }
"""
SEED = (
    SIGN.replace("share = { value", "seed_share = { value")
    .replace("$share", "$seed_share")
    .replace("suspect", "proven")
)


def write(folder, text, name="test.toml"):
    path = folder / name
    path.write_text(text)
    return path


def test_a_good_rule_loads(tmp_path):
    rule = load_rule(write(tmp_path, HEAD + SIGN))
    assert (rule.id, rule.severity, rule.signs[0].name) == ("TT01", "S2", "lr_identically_zero")
    assert rule.signs[0].test.arguments == {"share": 10.0}


def test_examples_with_tables_of_their_own_are_left_out_whole(tmp_path):
    example = '[[example]]\nnote = "beside another"\n[example.baseline]\nsettings = { lr = 1 }\n'
    chinese = '[zh]\ntitle = "测试"\nfix = ["做"]'
    path = write(tmp_path, f"{HEAD}{SIGN}{example}{chinese}")
    bare = load_rule(path, examples=False)
    assert (len(load_rule(path).examples), bare.examples) == (1, ())
    assert bare.text("zh").title == "测试"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (HEAD.replace("why", "because"), "unknown key 'because'"),
        (HEAD.replace('why = "Because."', ""), "why is missing or empty"),
        (HEAD.replace("S2", "S9"), "severity 'S9'"),
        (HEAD.replace("TT01", "tt"), "must look like GF07"),
        (HEAD.replace('"test"', '"A Test"'), "lower case words"),
        (HEAD.replace("{onset}", "{level}"), "{level} is no fact"),
        (HEAD + SIGN.replace('"$share"', "10"), "a bare number"),
        (HEAD + SIGN.replace('"$share"', '"$other"'), "$other is no parameter"),
        (HEAD + SIGN.replace("lr_identically_zero", "gradients"), "no check 'gradients'"),
        (HEAD + SIGN.replace('"suspect"', '"sure"'), "needs a strength"),
        (HEAD + SIGN.replace("with = {", 'with = { more = "x",'), "takes no 'more'"),
        (HEAD + SIGN.replace('with = { share = "$share" }', ""), "needs 'share'"),
        (HEAD + SIGN.replace("value = 10", "value = true"), "must be float"),
        (HEAD + SIGN.replace("value = 10,", ""), "must be { value"),
        (HEAD + SIGN + 'variant = "other"', "no [variant.other]"),
        (HEAD + SIGN + SIGN.split("[[sign]]")[1].join(["[[sign]]", ""]), "two signs are called"),
        (HEAD + SEED, "may only be suspect"),
        (HEAD + '[parameters]\nx = { value = 1, unit = "u", source = "s" }', "used by no sign"),
        (HEAD + 'needs = ["tables"]', "names no table"),
        (HEAD + 'needs = ["series:loss"]' + SIGN, "needs are declared by the checks"),
        (HEAD + '[zh]\nfix = ["一", "二"]', "zh fix"),
        (HEAD + '[zh.variant.x]\nwhat = "x"', "does not exist"),
        (HEAD + '[[look_alike]]\ncase = "TT02"', "look_alike has case, tell"),
        (HEAD + SIGN + '[[look_alike]]\ncase = "TT02"\ntell = "x"\nsigns = ["y"]', "does not exist"),
        (HEAD.replace("{onset}", "{onset!r}") + SIGN, "not allowed"),
        (HEAD.replace("{onset}", "{onset:>999}") + SIGN, "not allowed"),
        (HEAD.replace("{onset}", "{onset") + SIGN, "expected '}'"),
        ("id = ", "not TOML"),
        (HEAD + "parameters = 3", "parameters must be a table"),
        (HEAD + "variant = 3", "variant must be a table"),
        (HEAD + "variant = { a = 3 }", "must hold tables"),
        (HEAD + "zh = 3", "zh must be a table"),
        (HEAD + "zh = { variant = 3 }", "zh.variant must be a table"),
        (HEAD + "sign = 3", "[[sign]]"),
        (HEAD + "example = [3]", "[[example]]"),
        (HEAD + 'sign = [{ check = "bounces", with = 3 }]', "with = {"),
        (HEAD + "look_alike = [{ case = 3, tell = 4 }]", "case must be a string"),
        (HEAD + 'look_alike = [{ case = "TT02", tell = "x", unless = 3 }]', "with = {"),
        (HEAD + "fix = 3", "not TOML"),
        (HEAD.replace('fix = ["Do it."]', "fix = 3"), "fix must be a list"),
    ],
)  # fmt: skip
def test_refused(tmp_path, text, complaint):
    path = write(tmp_path, text)
    with pytest.raises(RuleError) as caught:
        load_rule(path)
    assert complaint in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_complaint_names_the_line(tmp_path):
    text = HEAD + SIGN.replace('"$share"', "10")
    with pytest.raises(RuleError) as caught:
        load_rule(write(tmp_path, text))
    assert caught.value.line is not None
    assert text.splitlines()[caught.value.line - 1] == "with = { share = 10 }"


def test_not_utf8(tmp_path):
    path = tmp_path / "x.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(RuleError, match="not UTF-8"):
        load_rule(path)


def test_a_folder_of_rules(tmp_path):
    write(tmp_path, HEAD + SIGN, "a.toml")
    write(tmp_path, HEAD + SIGN, "b.toml")
    with pytest.raises(RuleError, match="taken by"):
        load_rules(tmp_path)
    write(tmp_path, HEAD.replace("TT01", "TT02") + 'leads_to = ["TT99"]', "b.toml")
    with pytest.raises(RuleError, match="TT99, which does not exist"):
        load_rules(tmp_path)
    write(tmp_path, HEAD + 'leads_to = ["TT02"]', "a.toml")
    write(tmp_path, HEAD.replace("TT01", "TT02") + 'leads_to = ["TT01"]', "b.toml")
    with pytest.raises(RuleError, match="in a circle"):
        load_rules(tmp_path)
    with pytest.raises(RuleError, match="no rule files"):
        load_rules(tmp_path / "nothing")


def test_fill():
    assert fill("{a:.1%} of {run}, {b}", {"a": 0.256, "run": "x y", "b": None}) == "25.6% of x y, unknown"
    assert fill("replay {run}", {"run": "x; rm -rf y"}, quote_run=True) == "replay 'x; rm -rf y'"
    assert fill("{a:.2g}", {"a": "text"}) == "text"


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        ({"host": "n1", "gpu": 3}, "Drain host n1 and reset the GPU 3 now."),
        ({"host": None, "gpu": 3}, "Drain the host and reset the GPU 3 now."),
        ({}, "Drain the host and reset now."),
        ({"host": "[[x|y]] {gpu}"}, "Drain host [[x|y]] {gpu} and reset now."),
    ],
)
def test_what_is_not_known_is_left_out_of_a_text(facts, told):
    assert fill("Drain [[host {host}|the host]] and reset[[ the GPU {gpu}]] now.", facts) == told


def test_no_text_of_the_catalogue_on_a_host_shows_a_question_mark():
    rule = next(rule for rule in load_rules() if rule.id == "GF26")
    unknown: dict[str, Fact] = {"what": "W", "message": "M", "count": 1, "onset": 3, "before": 1.0, "later": 2.0}
    for variant in set(rule.variants) - {"silent-corruption"}:
        for language in ("en", "zh"):
            texts = rule.text(language, variant)
            assert "?" not in "".join(fill(text, unknown, language) for text in (texts.what, *texts.fix))


def test_series_texts():
    assert values_of("1*2 _ 3") == [1.0, 1.0, None, 3.0]
    assert values_of("ramp(0, 1, 3)") == [0.0, 0.5, 1.0]
    assert values_of("1*4 + spikes(at=2, height=5)") == [1.0, 6.0, 1.0, 1.0]
    assert values_of("sawtooth(0, 1, 2, 4)") == [0.0, 1.0, 0.0, 1.0]
    assert values_of("1*3 + noise(sd=0.1)") == values_of("1*3 + noise(sd=0.1)")
    for wrong in ("exec(1)", "1*3 + exec(1)", "x"):
        with pytest.raises(ValueError, match=r"exec|x"):
            values_of(wrong)


def test_examples_that_are_malformed_say_so(tmp_path):
    rule = load_rule(write(tmp_path, HEAD + SIGN))
    assert "unknown key 'serie'" in check_example(rule, {"serie": {}, "clear": True})
    assert "neither fires_at" in check_example(rule, {"series": {"lr": "1*30"}})
    assert "no column 'x'" in check_example(rule, {"tensors": [{"x": 1}], "clear": True})
    assert "should fire" in check_example(rule, {"series": {"lr": "1*30"}, "fires_at": 1})
