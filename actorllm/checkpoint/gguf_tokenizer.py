"""GGUF vocabularies as `tokenizers` objects.

GGUF keeps tokens, scores, types and merges, but of the pre-tokenizer only a name (`tokenizer.ggml.pre`). What
the names stand for are facts of llama.cpp's src/llama-vocab.cpp; the patterns here are those that the models'
own tokenizer.json files have. A name is known here only if its tokens were compared, one for one.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import ModelCorrupt, UnsupportedModel
from .fields import Fields
from .gguf import GGUFFile

if TYPE_CHECKING:
    import tokenizers

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 1, 2, 3, 4, 6

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, slots=True)
class _Pre:
    """A pre-tokenizer: `splits` cut the text one after the other, and matches and gaps are both words.

    composes     the text is brought into Unicode's form NFC first
    whole_words  a word that is a token is that token, whatever the merges say
    add_bos      what holds if the metadata do not say
    """

    splits: tuple[str, ...]
    composes: bool = False
    whole_words: bool = False
    add_bos: bool = False


_FAMILIES = {
    ("gpt-2",): _Pre((_GPT2,)),
    ("mpt",): _Pre((_GPT2,), composes=True),
    ("smollm", "starcoder", "refact"): _Pre((r"\p{N}", _GPT2)),
    ("command-r",): _Pre((r"\p{N}", _GPT2), composes=True),
    ("llama-bpe", "llama3", "llama-v3"): _Pre((_CL100K % "{1,3}",), whole_words=True, add_bos=True),
    ("qwen2",): _Pre((_CL100K % "",), composes=True),
    ("deepseek-coder",): _Pre((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", r"\p{N}")),
    ("falcon",): _Pre((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]")),
}
_PRES = {name: pre for names, pre in _FAMILIES.items() for name in names}


def convert(file: GGUFFile) -> "tokenizers.Tokenizer":
    """The tokenizer of a GGUF file. It takes as long as reading the same from a tokenizer.json would.

    Raises UnsupportedModel for a kind of vocabulary or a pre-tokenizer that is not known, ModelCorrupt for a
    vocabulary that contradicts itself.
    """
    vocabulary = _Vocabulary(file)
    model = vocabulary.fields.text("tokenizer.ggml.model")
    if model == "gpt2":
        return _byte_level(vocabulary)
    if model == "llama":
        return _sentencepiece(vocabulary)
    raise UnsupportedModel(f"{file.path}: a vocabulary of the kind {model!r}; supported are gpt2 and llama")


class _Vocabulary:
    """The vocabulary keys of a GGUF file, checked against each other."""

    def __init__(self, file: GGUFFile) -> None:
        self.path = file.path
        self.fields = Fields(file.path, file.get)
        self.tokens = self._texts("tokenizer.ggml.tokens")
        self.ids = {token: number for number, token in enumerate(self.tokens)}
        if len(self.ids) != len(self.tokens):
            raise ModelCorrupt(f"{self.path}: the vocabulary has the same token twice")
        types = self.fields.numbers("tokenizer.ggml.token_type")
        self.types: list[int] = [_NORMAL] * len(self.tokens) if types is None else types
        if len(self.types) != len(self.tokens):
            raise ModelCorrupt(f"{self.path}: {len(self.tokens)} tokens, but {len(self.types)} token types")

    def merges(self) -> list[tuple[str, str]]:
        """The merges in their order, the first of equals."""
        pairs: dict[tuple[str, str], None] = {}
        for merge in self._texts("tokenizer.ggml.merges"):
            cut = merge.find(" ", 1)
            if cut < 0:
                raise ModelCorrupt(f"{self.path}: {merge!r} is no merge of two tokens")
            pairs[merge[:cut], merge[cut + 1 :]] = None
        return list(pairs)

    def scores(self) -> list[float]:
        """The score of each token."""
        scores = self.fields.numbers("tokenizer.ggml.scores")
        if scores is None or len(scores) != len(self.tokens):
            raise ModelCorrupt(f"{self.path}: tokenizer.ggml.scores must have a score for each token")
        return scores

    def special(self, name: str) -> int | None:
        """The id of the special token of that name (bos, eos, unknown), if the file has one."""
        key = f"tokenizer.ggml.{name}_token_id"
        number = int(self.fields.number(key, -1))
        return number if 0 <= number < len(self.tokens) else None

    def flag(self, name: str, default: bool) -> bool:
        """One of the switches (add_bos_token, add_space_prefix, ...)."""
        return self.fields.flag(f"tokenizer.ggml.{name}", default)

    def _texts(self, key: str) -> list[str]:
        texts = self.fields.texts(key)
        if not texts:
            raise ModelCorrupt(f"{self.path}: {key} is missing")
        return texts


def _byte_level(vocabulary: _Vocabulary) -> "tokenizers.Tokenizer":
    from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers

    name = vocabulary.fields.text("tokenizer.ggml.pre")
    pre = _PRES.get(name or "")
    if pre is None:
        known = ", ".join(_PRES)
        raise UnsupportedModel(f"{vocabulary.path}: the pre-tokenizer {name!r}; supported are {known}")
    model = _bpe(vocabulary, vocabulary.merges(), ignore_merges=pre.whole_words)
    tokenizer = Tokenizer(model)
    if pre.composes:
        tokenizer.normalizer = normalizers.NFC()
    splits = [pre_tokenizers.Split(Regex(split), "isolated") for split in pre.splits]
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*splits, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    _add_special_tokens(tokenizer, vocabulary)
    _surround(tokenizer, vocabulary, pre.add_bos)
    return tokenizer


def _sentencepiece(vocabulary: _Vocabulary) -> "tokenizers.Tokenizer":
    from tokenizers import Tokenizer, decoders, normalizers

    unknown = vocabulary.special("unknown")
    model = _bpe(
        vocabulary,
        _merges_of_scores(vocabulary),
        byte_fallback=True,
        fuse_unk=True,
        unk_token=None if unknown is None else vocabulary.tokens[unknown],
    )
    tokenizer = Tokenizer(model)
    prefix = vocabulary.flag("add_space_prefix", True)
    escape = normalizers.Replace(" ", "▁")
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), escape] if prefix else [escape])
    steps: list[Any] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefix else steps)
    _add_special_tokens(tokenizer, vocabulary)
    _surround(tokenizer, vocabulary, add_bos=True)
    return tokenizer


def _bpe(vocabulary: _Vocabulary, merges: list[tuple[str, str]], **options: Any) -> "tokenizers.models.BPE":
    from tokenizers import models

    try:
        return models.BPE(vocab=vocabulary.ids, merges=merges, **options)
    except Exception as error:  # the library raises a bare Exception
        raise ModelCorrupt(f"{vocabulary.path}: {error}") from None


def _merges_of_scores(vocabulary: _Vocabulary) -> list[tuple[str, str]]:
    """Merges that do what sentencepiece's BPE does: of all pairs that make a token, the best score first.

    Every way to cut a token into two tokens is a merge of that token's rank.
    """
    ids, scores = vocabulary.ids, vocabulary.scores()
    ranked = []
    for token, number in ids.items():
        if vocabulary.types[number] in (_BYTE, _CONTROL, _UNKNOWN):
            continue
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in ids and right in ids:
                ranked.append((-scores[number], ids[left], ids[right], left, right))
    ranked.sort()
    return [(left, right) for _, _, _, left, right in ranked]


def _add_special_tokens(tokenizer: "tokenizers.Tokenizer", vocabulary: _Vocabulary) -> None:
    from tokenizers import AddedToken

    added = {_UNKNOWN: True, _CONTROL: True, _USER_DEFINED: False}
    tokens = [
        AddedToken(token, special=added[kind], normalized=False)
        for token, kind in zip(vocabulary.tokens, vocabulary.types, strict=True)
        if kind in added and token
    ]
    tokenizer.add_tokens(tokens)


def _surround(tokenizer: "tokenizers.Tokenizer", vocabulary: _Vocabulary, add_bos: bool) -> None:
    from tokenizers.processors import TemplateProcessing

    around = []
    for name, default in (("bos", add_bos), ("eos", False)):
        number = vocabulary.special(name)
        wanted = vocabulary.flag(f"add_{name}_token", default and number is not None)
        if wanted and number is None:
            raise ModelCorrupt(f"{vocabulary.path}: {name} is to be added, but there is no {name}_token_id")
        around.append([vocabulary.tokens[number]] if wanted and number is not None else [])
    bos, eos = around
    if not bos and not eos:
        return
    tokenizer.post_processor = TemplateProcessing(
        single=[*bos, "$A", *eos],
        pair=[*bos, "$A", *eos, *(f"{token}:1" for token in bos), "$B:1", *(f"{token}:1" for token in eos)],
        special_tokens=[(token, vocabulary.ids[token]) for token in {*bos, *eos}],
    )
