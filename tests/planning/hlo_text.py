"""Hand-written HLO, and its cost."""

import textwrap

from t2t.planning.hlo_traffic import Cost, measure_cost

ROWS = 1000  # float32 entries of the table that most programs here read: 4,000 bytes


def measure(body: str, *computations: str) -> Cost:
    """Measures an entry computation with the parameters %table and %index."""
    others = "\n".join(textwrap.dedent(one).strip() + "\n" for one in computations)
    lines = textwrap.indent(textwrap.dedent(body).strip(), "  ")
    text = f"""HloModule test, num_partitions=4

{others}
ENTRY %main (table: f32[{ROWS}], index: s32[]) -> f32[{ROWS}] {{
  %table = f32[{ROWS}]{{0:T(1024)}} parameter(0)
  %index = s32[]{{:T(128)}} parameter(1)
{lines}
}}
"""
    return measure_cost(text)


BODY = """
    %body (in: (s32[], f32[1000])) -> (s32[], f32[1000]) {
      %in = (s32[], f32[1000]{0}) parameter(0)
      %i = s32[] get-tuple-element(%in), index=0
      %x = f32[1000]{0} get-tuple-element(%in), index=1
      %y = f32[1000]{0} negate(%x)
      ROOT %out = (s32[], f32[1000]{0}) tuple(%i, %y)
    }
"""
CONDITION = """
    %condition (in.1: (s32[], f32[1000])) -> pred[] {
      %in.1 = (s32[], f32[1000]{0}) parameter(0)
      %limit = s32[]{:T(128)} constant(7)
      %i.1 = s32[] get-tuple-element(%in.1), index=0
      ROOT %less = pred[] compare(%i.1, %limit), direction=LT
    }
"""
LOOP = """
    %start = (s32[], f32[1000]{0}) tuple(%index, %table)
    ROOT %loop = (s32[], f32[1000]{0}) while(%start), condition=%condition, body=%body
"""
