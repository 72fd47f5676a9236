#!/bin/bash
# From the corpus to the shipped files.  Usage: regenerate.sh WORK_DIR DELIVERY_DIR
#
# WORK_DIR keeps the corpus, the tokenizer, the training run and every file made; a training run that is
# already there (WORK_DIR/run/training.json) is not repeated. DELIVERY_DIR gets tiny/, tiny-w4a16/ and
# ops/: the files that are in git, and no others.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
work=$1 out=$2
export HF_HUB_OFFLINE=1 OPENBLAS_NUM_THREADS=1
mkdir -p "$work"
if [ ! -e "$work/text/corpus.json" ]; then
  (cd "$work" && apt-get download r-cran-janeaustenr && dpkg-deb -x r-cran-janeaustenr_*.deb debroot)
  python "$here/build_corpus.py" --deb-root "$work/debroot" --out "$work/text"
fi
[ -e "$work/tokenizer/tokenizer.json" ] ||
  python "$here/train_tokenizer.py" --corpus "$work/text" --out "$work/tokenizer"
[ -e "$work/run/training.json" ] ||
  python "$here/train_model.py" --corpus "$work/text" --tokenizer "$work/tokenizer" --out "$work/run"

tiny=$work/tiny w4a16=$work/tiny-w4a16 ops=$work/ops
python "$here/export_checkpoint.py" --run "$work/run" --tokenizer "$work/tokenizer" --out "$tiny"
python "$here/make_test_vectors.py" --checkpoint "$tiny" --corpus "$work/text" --out "$tiny"
python "$here/quantize_w4a16.py" --checkpoint "$tiny" --corpus "$work/text" --out "$w4a16"
python "$here/make_test_vectors.py" --checkpoint "$tiny" --corpus "$work/text" --out "$w4a16" --w4a16 "$w4a16"
python "$here/make_op_vectors.py" --out "$ops"
python "$here/check_vectors.py" --ops "$ops" --tiny "$tiny" --w4a16 "$w4a16"

mkdir -p "$out/tiny" "$out/tiny-w4a16" "$out/ops"
cp "$tiny"/{config,generation_config,tokenizer,tokenizer_config,training,test_vectors}.json \
  "$tiny"/{model,test_vectors_f64,test_vectors_bf16}.safetensors "$out/tiny/"
cp "$w4a16"/{quantization,test_vectors_w4a16}.json \
  "$w4a16"/{full_model,test_vectors_w4a16_f64,test_vectors_w4a16_bf16}.safetensors "$out/tiny-w4a16/"
cp "$ops"/* "$out/ops/"
