"""The linter of rule files: what it finds, that it finds all of it at once, and where."""

import pytest

from gradforensics.cli import main
from gradforensics.diagnosis.checks import CHECKS
from gradforensics.diagnosis.lint import check_folder
from gradforensics.diagnosis.rules import load_rules
from gradforensics.diagnosis.vocabulary import check, hit_at
from gradforensics.errors import RuleError
from gradforensics.languages import Text

GOOD = """\
id       = "TT01"
slug     = "dead-rate"
family   = "test"
title    = "The learning rate is zero"
severity = "S2"
leads_to = ["GF06"]
what     = "The rate is 0 from step {onset}."
why      = "A rate of zero changes nothing."
fix      = ["Set a learning rate."]
verify   = "gradforensics replay {run} --step {onset}"
false_alarms = ["A warm-up that has not begun."]
references = ["PyTorch documentation: torch.optim"]

[variant.all]
what = "The rate is 0 throughout, from step {onset}."

[parameters]
share = { value = 0.5, unit = "fraction of points", source = "made up for this test" }

[[sign]]
check    = "lr_identically_zero"
variant  = "all"
strength = "probable"
with     = { share = "$share" }

[[look_alike]]
case = "GF12"
tell = "There the steps are skipped."
tell_zh = "那里的步被跳过。"

[[example]]
note     = "zero throughout"
series   = { lr = "0*50", loss = "3*50" }
fires_at = 1
variant  = "all"

[[example]]
note   = "near miss: small, and not zero"
series = { lr = "1e-6*50", loss = "3*50" }
clear  = true

[[example]]
note    = "no rate logged"
series  = { loss = "3*50" }
missing = ["series:lr:points>=10"]

[zh]
title = "学习率为零"
what  = "从第 {onset} 步起学习率为 0。"
why   = "学习率为零时什么也不会改变。"
fix   = ["设置学习率。"]
false_alarms = ["尚未开始的预热。"]

[zh.variant.all]
what = "学习率始终为 0，从第 {onset} 步起。"
"""
SILENT = """
[[example]]
note    = "looked, and found nothing"
series  = { lr = "1e-6*50", loss = "3*50" }
missing = []
"""
FIX = '["Set a learning rate."]'
ZH_FIX = '["设置学习率。"]'


@pytest.fixture
def lint(tmp_path):
    """Lint one file; gives its complaints as (line, text), and whether each is a mere warning."""

    def check(text, place="test/dead-rate.toml"):
        path = tmp_path / "rules" / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        found = check_folder(tmp_path / "rules")
        assert all(complaint.path == path for complaint in found.complaints)
        return [(c.line, c.text) for c in found.complaints], [c.warning for c in found.complaints]

    return check


def line_of(text, piece):
    return next(n for n, row in enumerate(text.splitlines(), 1) if piece in row)


def test_a_good_rule_has_nothing_to_complain_of(lint):
    assert lint(GOOD) == ([], [])


@pytest.mark.parametrize(
    ("old", "new", "complaint", "at"),
    [
        ("leads_to =", "lead_to =", "unknown key 'lead_to'", "lead_to ="),
        ("check    =", 'weight = "x"\ncheck    =', "unknown key 'weight' in a sign", "weight ="),
        ("[variant.all]\n", '[variant.all]\nname = "x"\n', "unknown key 'name' among the texts", "name ="),
        ('note     = "zero', 'kind = "x"\nnote     = "zero', "unknown key 'kind'", "[[example]]"),
        ('unit = "fraction of points"', 'unit = ""', "share has no unit", "share ="),
        ('unit = "fraction of points", ', "", "must be { value", "share ="),
        ('source = "made up for this test"', 'source = "guess"', "does not say where it comes from", "share ="),
        ("fires_at = 1\nvariant  = ", "fires_at = 1\nstrength = ", "all has no example that fires", "[variant.all]"),
        ('variant  = "all"\nstrength', "strength", "no sign speaks of the variant all", "[variant.all]"),
        ("clear  = true", 'missing = ["x"]', "no near miss", "id "),
        ('missing = ["series:lr:points>=10"]', "clear = true", "no example without the evidence", "id "),
        ("fires_at = 1", "fires_at = 3", "fires at 1, not at 3", "[[example]]"),
        ('case = "GF12"', 'case = "TT77"', "look_alike TT77 does not exist", 'case = "TT77"'),
        ('"GF06"', '"TT78"', "leads_to names TT78", "leads_to"),
        ("clear  = true", 'clear = true\nrefuted_by = ["TT79"]', "refuted_by names TT79", "refuted_by"),
        ('title = "学习率为零"\n', "", "Chinese title is missing", "[zh]"),
        ("A rate of zero changes nothing", "{onset} changes nothing", "would not be filled in", "why "),
        ('why   = "学习率为零时什么也不会改变。"', 'why = "So."', "Chinese why is not in Chinese", "why = "),
        (f"fix   = {ZH_FIX}\n", "", "0 entries, in English 1", "[zh]"),
        ('what = "学习率始终为 0，从第 {onset} 步起。"', 'title = "零"', "what of the variant all", "[zh.variant.all]"),
        ('[zh.variant.all]\nwhat = "', '[zh.variant.all]\nwhat = "{level}', "{level} is no fact", "{level}"),
        ("throughout, from step {onset}", "throughout, from {onset:>99}", "format is not allowed", "{onset:>99}"),
        ('tell_zh = "那里的步被跳过。"\n', "", "tell of the look_alike GF12 (tell_zh) is missing", "[[look_alike]]"),
        ("那里的步被跳过。", "Steps.", "look_alike GF12 (tell_zh) is not in Chinese", "tell_zh"),
        ('false_alarms = ["尚未开始的预热。"]\n', "", "Chinese false_alarms is missing", "[zh]"),
        ("尚未开始的预热。", "No warm-up.", "Chinese false_alarms is not in Chinese", "No warm-up."),
        ("尚未开始的预热。", "预热 has not yet begun", "holds English words: 'has not yet begun'", "预热 has"),
        (ZH_FIX, '["Set it."]', "Chinese fix is not in Chinese", '["Set it."]'),
        ("从第 {onset} 步起学习率为 0。", "学习率为 0。", "Chinese what tells of other facts: {onset}", "学习率为 0。"),
        ("gradforensics replay {run} --step {onset}", "Look at {run}.", "Chinese verify is missing", "[zh]"),
        ("[parameters]", '[parameters]\nother = { value = 1, unit = "u", source = "mine only" }', "no sign", "other ="),
        ('slug     = "dead-rate"', 'slug = "dead"', "must be test/dead.toml", "slug"),
        ('family   = "test"', 'family = "other"', "must be other/dead-rate.toml", "slug"),
        ('verify   = "gradforensics replay {run} --step {onset}"\n', "", "verify is missing", "id "),
        ("--step {onset}", "--step {onset}, then look", "goes on in prose", "verify "),
        (
            '[[look_alike]]\ncase = "GF12"\ntell = "There the steps are skipped."\ntell_zh = "那里的步被跳过。"\n', "",
            "no look_alike", "id ",
        ),
        ('strength = "probable"', 'strength = "sure"', "needs a strength", "lr_identically_zero"),
        ('"S2"', '"S7"', "severity 'S7'", "severity"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_its_line(lint, old, new, complaint, at):
    text = GOOD
    assert old in text
    text = text.replace(old, new, 1)
    found, warnings = lint(text)
    assert any(complaint in said for _, said in found), found
    assert (line_of(text, at)) in [line for line, said in found if complaint in said]
    assert not any(warnings)


@pytest.mark.parametrize(
    ("english", "chinese"),
    [
        ("Initialise the weights with xavier_uniform_.", "用 xavier_uniform_ 重新初始化权重。"),
        ("Raise eps to 1e-5.", "把 eps 提高到 1e-5。"),
        ("Call zero_grad() before every forward pass.", "在每次前向之前调用 zero_grad()。"),
        ("Set NCCL_SOCKET_TIMEOUT=1800.", "设置 NCCL_SOCKET_TIMEOUT=1800。"),
        ('Try optim="lion".', '使用 optim="lion"。'),
        ("Set loss_scale=128.", "设置 loss_scale=128。"),
        ("Use hidden.clone().requires_grad_(True).", "使用 hidden.clone().requires_grad_(True)。"),
        ("Print the gradients only on rank 0.", "只在 rank 0 打印梯度。"),
        ("Clip the gradients, so that NaN does no harm.", "裁剪梯度以消除 NaN。"),
    ],
)
@pytest.mark.parametrize("language", ["en", "zh"])
def test_advice_that_does_harm_is_refused_in_both_languages(lint, english, chinese, language):
    old, new = (FIX, english) if language == "en" else (ZH_FIX, chinese)
    text = GOOD.replace(old, f"['''{new}''']")
    found, _ = lint(text)
    assert len(found) == 1
    assert "does harm" in found[0][1]
    assert found[0][0] == line_of(text, new)


@pytest.mark.parametrize(
    "fix",
    [
        "Do not set NCCL_SOCKET_TIMEOUT: NCCL has no such variable.",
        "Raise the eps of the layer norm to 1e-5.",
        "Find the place before any clipping: a NaN norm makes clip_grad_norm_ write NaN into every gradient.",
        "When changing to Lion, use optim=lion_32bit.",
        "Clip gradients at 1.0.",
        "Call zero_grad() once per optimizer step.",
    ],
)
def test_advice_that_only_speaks_of_it_is_no_fault(lint, fix):
    assert lint(GOOD.replace(FIX, f"['''{fix}''']")) == ([], [])


def test_a_rule_whose_signs_do_not_acquit_must_look_and_find_nothing(lint):
    text = GOOD.replace("with     =", "acquits  = false\nwith     =")
    text = text.replace("clear  = true", 'missing = ["x"]').replace(
        'missing = ["x"]', 'missing = ["series:lr:points>=10"]', 1
    )
    found, _ = lint(text)
    assert any("must look and find nothing" in said for _, said in found)
    kept = GOOD.replace("with     =", "acquits  = false\nwith     =")
    near = kept[kept.index('[[example]]\nnote   = "near miss') : kept.index('[[example]]\nnote    = "no rate')]
    assert lint(kept.replace(near, "").replace("[zh]\n", SILENT + "\n[zh]\n")) == ([], [])


CODE = """
[code]
general = "optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)"
deepspeed = '{"gradient_clipping": 1.0}'

[code.all]
hf-trainer = '''
args = TrainingArguments(
    learning_rate=3e-4
)'''

[parameters]
"""


@pytest.mark.parametrize(
    ("old", "new", "complaint", "at"),
    [
        ("", "", "", ""),
        ("general = ", "pytorch = ", "the code for pytorch is for no framework", "pytorch ="),
        ("[code.all]", "[code.none]", "belongs to a variant that does not exist", "[code.none]"),
        ('lr=3e-4)"', 'lr=3e-4"', "the code for general is no python", "general ="),
        ("1.0}", "1.0", "the code for deepspeed is no json", "deepspeed ="),
        ('lr=3e-4)"', 'lr=3e-4, eps=1e-5)"', "this code does harm ('eps=1e-5')", "general ="),
        ("    learning_rate=3e-4\n", "    learning_rate=3e-4,\n" * 9, "has 11 lines (1 to 8)", "hf-trainer ="),
        ("    learning_rate=3e-4\n", f"    learning_rate=3{'0' * 99}\n", "has a line of", "hf-trainer ="),
        ('general = "optimizer', "general = 3 #", "general must be a string", "general = 3"),
    ],
)
def test_code_is_short_whole_harmless_and_for_a_known_framework(lint, old, new, complaint, at):
    text = GOOD.replace("\n[parameters]\n", CODE.replace(old, new, 1) if old else CODE)
    found, _ = lint(text)
    assert [complaint in said for _, said in found] == ([True] if complaint else [])
    assert [line for line, _ in found] == ([line_of(text, at)] if complaint else [])


def test_a_translated_verify_is_a_command_to_its_end_or_prose(lint):
    text = GOOD.replace('"gradforensics replay {run} --step {onset}"', '"Print the rate at step {onset}."')
    for verify, complaints in (
        ("打印第 {onset} 步的学习率。", 0),
        ("gradforensics replay {run} --step {onset}，再看", 3),
    ):
        found, _ = lint(text.replace("[zh]\n", f'[zh]\nverify = "{verify}"\n'))
        assert len(found) == complaints
    assert found[0][0] == line_of(text, "[zh]") + 1
    assert any("goes on in prose" in said for _, said in found)


def test_a_fact_in_english_words_does_not_stand_in_a_chinese_sentence(lint, monkeypatch):
    told: dict[str, str | Text] = {"unit": "summed over the tokens"}

    @check(needs=["series:lr:points>=10"], facts=["unit"])
    def says_what_it_is(evidence, *, share: "float"):
        rate = evidence.series("lr")
        return [hit_at(rate, 0, unit=told["unit"])] if not rate.values.any() else []

    monkeypatch.setitem(CHECKS, "says_what_it_is", says_what_it_is)
    text = GOOD.replace("lr_identically_zero", "says_what_it_is")
    text = text.replace("throughout, from", "throughout ({unit}), from").replace("始终为 0", "始终为 0（{unit}）")
    (found,), _ = lint(text)
    assert found[0] == line_of(text, "[[example]]")
    assert "{unit} is 'summed over the tokens'" in found[1]
    told["unit"] = "bits"  # a name
    assert lint(text) == ([], [])
    told["unit"] = Text("summed over the tokens", "对 token 求和")
    assert lint(text) == ([], [])
    told["unit"] = "zero throughout"  # a quote of the evidence
    assert lint(text) == ([], [])


def test_a_long_title_is_a_warning_and_no_fault(lint, tmp_path, capsys):
    text = GOOD.replace("The learning rate is zero", "The learning rate is zero " * 3)
    found, warnings = lint(text)
    assert warnings == [True]
    assert found[0][0] == line_of(text, "title")
    assert main(["rules", "check", str(tmp_path / "rules")]) == 0
    assert "warning: the title has" in capsys.readouterr().err


def test_every_complaint_comes_at_once(lint, tmp_path, capsys):
    text = GOOD
    for old, new in (
        ("leads_to =", "lead_to ="),
        ('unit = "fraction of points"', 'unit = ""'),
        ('case = "GF12"', 'case = "TT77"'),
        ('title = "学习率为零"\n', ""),
        ('strength = "probable"', 'strength = "sure"'),
        (FIX, '["Set loss_scale=128."]'),
        ('"S2"', '"S9"'),
        ('family   = "test"', 'family = "Test"'),
    ):
        text = text.replace(old, new, 1)
    found, _ = lint(text)
    told = " | ".join(said for _, said in found)
    for piece in (
        "unknown key 'lead_to'", "no unit", "TT77", "Chinese title", "needs a strength", "does harm", "severity 'S9'",
        "lower case words",
    ):  # fmt: skip
        assert piece in told
    assert main(["rules", "check", str(tmp_path / "rules")]) == 2
    path = tmp_path / "rules" / "test" / "dead-rate.toml"
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == len(found)
    assert f"{path}:{line_of(text, 'lead_to')}: unknown key 'lead_to'" in errors


def test_complaints_of_all_files_come_together(tmp_path):
    for name, old, new in (("dead-rate", '"S2"', '"S9"'), ("b", "id  ", "ident"), ("c", "[zh]", "[zh")):
        (tmp_path / "test").mkdir(exist_ok=True)
        (tmp_path / "test" / f"{name}.toml").write_text(GOOD.replace(old, new, 1), encoding="utf-8")
    found = check_folder(tmp_path)
    assert {c.path.stem for c in found.complaints} == {"dead-rate", "b", "c"}
    assert any("not TOML" in c.text for c in found.complaints)


def test_an_id_taken_twice_and_a_circle_are_complaints(tmp_path):
    first, second = GOOD.replace('"GF06"', '"TT02"'), GOOD.replace('"GF06"', '"TT01"')
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "dead-rate.toml").write_text(first, encoding="utf-8")
    other = second.replace('"TT01"\nslug     = "dead-rate"', '"TT02"\nslug     = "other"')
    (tmp_path / "test" / "other.toml").write_text(other, encoding="utf-8")
    assert [c.text for c in check_folder(tmp_path).complaints] == ["leads_to runs in a circle: TT01 -> TT02 -> TT01"]
    (tmp_path / "test" / "twice.toml").write_text(first.replace("dead-rate", "twice"), encoding="utf-8")
    assert any("the id TT01 is taken by" in c.text for c in check_folder(tmp_path).complaints)


def test_rules_of_ones_own_may_lead_to_cases_of_the_catalogue_and_to_no_others(tmp_path):
    (tmp_path / "a.toml").write_text(GOOD, encoding="utf-8")
    assert [rule.leads_to for rule in load_rules(tmp_path)] == [("GF06",)]
    (tmp_path / "a.toml").write_text(GOOD.replace("GF06", "GF99"), encoding="utf-8")
    with pytest.raises(RuleError, match="leads_to names GF99"):
        load_rules(tmp_path)


def test_a_command_in_the_midst_of_prose_needs_a_line_of_its_own(lint):
    command = "gradforensics replay {run} --step {onset}"
    mixed, _ = lint(
        GOOD.replace(f'"{command}"', f'"Run {command} twice."').replace("[zh]\n", '[zh]\nverify = "做两次。"\n')
    )
    assert any("a command stands in the midst of prose: give it a line" in said for _, said in mixed)
    apart = GOOD.replace(f'"{command}"', f'"Run this twice:\\n{command}"')
    assert not lint(apart.replace("[zh]\n", f'[zh]\nverify = "运行两次：\\n{command}"\n'))[0]
    other, _ = lint(apart.replace("[zh]\n", '[zh]\nverify = "运行两次。"\n'))
    assert any("other lines than the English one" in said for _, said in other)
