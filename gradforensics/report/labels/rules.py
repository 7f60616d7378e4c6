"""Labels of a rule that is explained, and of the list of rules."""

from collections.abc import Mapping

# key: (English, Chinese)
LABELS: Mapping[str, tuple[str, str]] = {
    "rule_fix": ("Fix", "修复"),
    "rule_variant": ("Variant {name} ({severity})", "变体 {name}（{severity}）"),
    "rule_signs": ("Signs", "迹象"),
    "rule_needs": ("Needs", "所需证据"),
    "rule_look_alikes": ("Look-alikes", "相似情形"),
    "rule_leads_to": ("May lead to", "可能导致"),
    "rule_false_alarms": ("Can be a false alarm", "何时属于误报"),
    "rule_verify": ("Verify", "如何验证"),
    "rule_parameters": ("Parameters", "参数（单位与出处为英文原文）"),
    "rule_references": ("References", "参考"),
    "rule_of_variant": ("variant {name}", "变体 {name}"),
    "rule_no_acquittal": ("does not acquit", "不足以排除"),
    "rule_unverifiable": ("{verify} (not in this version)", "{verify}（本版本尚不支持）"),
    "rule_untested": ("this version has no test for it", "本版本没有对应的检验"),
    "rule_unused": (" [kept for reference, not used]", "［仅供参考，未使用］"),
    "rule_hint": ("{need}  ({hint})", "{need}（{hint}）"),
    "rule_sign": ("{name}: {about}", "{name}：{about}"),
    "rule_parameter": ("{name} = {value} ({unit}; {source})", "{name} = {value}（{unit}; {source}）"),
    "rule_comma": (", ", "，"),
}
