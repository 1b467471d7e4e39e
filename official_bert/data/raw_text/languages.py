"""Wikipedia's language codes, and for each the language whose rules split its sentences.

The `sentencex` library has rules (abbreviations, months, quotation marks) for some languages. Every other language uses
those of a related language, or of a language that its texts borrow from, or else English, whose rules know the full
stops of all scripts.
"""

import difflib

OWN_RULES = "am ar bg bn ca da de el en es fi fr gu hi hy it ja kk kn ml mr my nl pa pl pt ru sk ta te uk"

_FALLBACKS = {
    "ar": "acm aeb apc arq ary arz",
    "bn": "as bpy",
    "ca": "oc",
    "da": "kl",
    "de": "als bar dsb frr gsw hrx hsb ksh lb nds pdc pdt pfl rm stq",
    "el": "pnt",
    "es": "an ast ay cbk-zam ext gn guc lad nah qu",
    "fi": "fit krl olo se smn",
    "fr": "atj bm bci dga ff fon frp gcr gpe ht kab kbp ln mg mos nrm nr pcd sg shi ty wa wo",
    "hi": "anp awa bh bho dty mag mai ne new pi sa",
    "hy": "hyw",
    "it": "co eml fur lij lld lmo nap pms roa-tara sc scn vec",
    "ja": "ryu",
    "kk": "kaa",
    "kn": "tcy",
    "mr": "gom",
    "my": "blk ksw kjp mnw rki shn",
    "nl": "af li nds-nl srn vls zea",
    "pl": "csb szl",
    "pt": "gl kea mwl tet",
    "ru": "ab ady av ba bxr ce chy cu cv inh kbd koi krc kum kv lbe lez mdf mhr mrj myv os sah tt tyv udm xal",
    "sk": "cs",
    "uk": "be be-tarask be-x-old rue",
    "en": "aa ace ak alt ami ang arc avk az azb ban bat-smg bbc bcl bdr bew bi bjn bo br bs btm bug cdo ceb ch cho chr "
    "ckb cr crh ctg cy dag din diq dtp dv dz ee eo et eu fa fat fiu-vro fj fo fy ga gag gan gd glk gor got guw gv "
    "ha hak haw he hif ho hr hu hz ia iba id ie ig igl ii ik ilo io is isv iu jam jbo jv ka kcg kg kge ki kj km knc "
    "ko kr "
    "krj ks ku kus kw ky la lbj lfn lg lo lrc lt ltg lv lzh mad map-bms mh mi min mk mn mni mo ms mt mus mzn na nan "
    "nb ng nia nn no nov nqo nso nup nv ny om or pag pam pap pcm pih pnb ps pwn rmy rn ro roa-rup rsk rup rw "
    "sat sd sgs sh si simple skr sl sm sn so sq sr ss st su sv sw syl szy tay tdd tg th ti tig tk tl tly tn "
    "to tok tpi tr trv ts tum tw ug ur uz ve vep vi vo vro war wuu xh xmf yi yo yue za zgh zh zh-classical zh-min-nan "
    "zh-yue zu",
}
# {code: the language whose rules it uses}
RULES = {code: code for code in OWN_RULES.split()} | {
    code: rule for rule, codes in _FALLBACKS.items() for code in codes.split()
}


def splitting_rule(language: str) -> str:
    """Returns the code of the language whose rules split the sentences of `language`.

    Raises ValueError, with similar codes, for a code that is not in the list of Wikipedias.
    """
    if language not in RULES:
        similar = difflib.get_close_matches(language.lower(), RULES, n=3, cutoff=0.5)
        raise ValueError(
            f"--language: expected the code of a Wikipedia, as in en.wikipedia.org, got {language!r}"
            + (f"; did you mean {', '.join(similar)}?" if similar else "")
        )
    return RULES[language]


def describe_rule(language: str) -> str:
    """Returns a line that names the rules for sentences of `language`; "" if these are its own.

    Raises the errors of `splitting_rule`.
    """
    rule = splitting_rule(language)
    return "" if rule == language else f"sentences of {language} are split by the rules of {rule} (fallback)"
