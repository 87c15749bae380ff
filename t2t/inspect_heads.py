"""Shows what every head attends to: `python -m t2t.inspect_heads --workdir=RUN "A girl climbs."`.

It writes one self-contained HTML page, RUN/heads.html: attention maps of the heads of encoder,
decoder and cross-attention, each with its entropy, its role and what the model loses without it.
"""

from t2t.analysis.head_request import HeadRequest
from t2t.runtime import command_line


def main(request: HeadRequest) -> None:
    """Writes the page and prints its path."""
    from t2t.analysis.head_page import show_attention
    from t2t.runtime.jax_settings import enable_compilation_cache

    enable_compilation_cache()
    print(show_attention(request))


if __name__ == "__main__":
    command_line.run(main)
