#!/usr/bin/env bash
# Downloads what benchmarks/on_gpu.py needs besides JAX: benchmarks/fetch_gpu_wheels.sh [FOLDER [PYTHON_VERSION]]
#
# For a machine without network, on Linux x86-64. FOLDER is wheels/ of the checkout by default, where
# benchmarks/on_gpu.py looks, PYTHON_VERSION that of the machine (default: 3.12). 43 MB of the 46 MB
# are CTranslate2, without which step `decoding` measures t2t alone.
#
#   PYTHON=/path/to/python   an interpreter with pip
set -euo pipefail

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
folder=${1:-$repository/wheels}
version=${2:-3.12}
# What a machine for JAX lacks, with what these packages need in turn: sacremoses uses joblib and
# click, joblib uses cloudpickle.
packages=(ml_collections tensorboardX sacremoses click joblib cloudpickle sentencepiece ctranslate2)

"${PYTHON:-python3}" -m pip download --quiet --dest "$folder" --no-deps --only-binary=:all: \
    --implementation cp --python-version "$version" --platform manylinux_2_28_x86_64 \
    --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \
    --constraint "$repository/scripts/constraints/python$version.txt" "${packages[@]}"
du -ch "$folder"/*.whl
