"""Which dtype a model is computed in."""


def resolve_dtype(wanted: str, stored: str) -> str:
    """float32, bfloat16 or float16: as wanted; auto is float32 where the checkpoint is, else bfloat16."""
    return wanted if wanted != "auto" else "float32" if stored == "float32" else "bfloat16"
