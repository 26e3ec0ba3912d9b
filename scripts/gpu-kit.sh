#!/usr/bin/env bash
# Packs what a GPU machine on which nothing can be installed needs for check-gpu.sh: gpu-kit.sh FOLDER
# The programs and the tests' objects, built here without CUDA, the shared libraries that they load, and
# the headers that the CUDA sources include. There CUDA's part is compiled and linked to them.
set -euo pipefail
cd "$(dirname "$0")/.."
kit=${1:?a folder below the project}
# for make, which takes $$ for $, and then for the shell
runpath="-Wl,--disable-new-dtags,-rpath,'\$\$ORIGIN/lib',-rpath,'\$\$ORIGIN/../../lib'"
programs="trainyardd trainyard-agent trainyard-shim trainyard-trainer trainyard tests/gpu/run_job"

make --no-print-directory CUDA=0 BUILD="$kit" deps-test
objects=""
while read -r t; do objects+=" $kit/tests/unit/$t.o"; done <tests/gpu/one-gpu-tests
targets=""
for p in $programs; do targets+=" $kit/$p"; done
# shellcheck disable=SC2086
LDFLAGS="$runpath" make --no-print-directory -j"$(nproc)" CUDA=0 BUILD="$kit" $targets $objects "$kit/trainer/main.o"

rm -rf "$kit/lib" # of an earlier kit
mkdir -p "$kit/lib" "$kit/include" "$kit/bin"
cp "$(command -v jq)" "$kit/bin/"
jansson=$(dirname "$(gcc -print-file-name=libjansson.so)")
# the libraries that each program loads, and theirs; the C library itself is the machine's
for p in $programs bin/jq; do ldd "$kit/$p"; done | awk '$3 ~ /^\// {print $3}' | sort -u |
  grep -vE '/(libc|libm|libpthread|libdl|librt|libresolv|ld-linux[^/]*)\.so' | xargs -I{} cp -L {} "$kit/lib/"
cp -L "$jansson/libcmocka.so.0" "$kit/lib/" 2>/dev/null || cp -L "$(ldconfig -p | awk '/libcmocka.so.0/ {print $NF; exit}')" "$kit/lib/"
readelf -d "$kit/trainyard-trainer" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | grep -vE '^lib(c|m|gcc_s)\.so|^ld-' >"$kit/needed"
cp /usr/include/jansson*.h "$kit/include/"
cp -r /usr/include/Random123 "$kit/include/"
find "$kit" -name '*.d' -delete
rm -rf "$kit"/{daemon,storage,api,cli,base,spec} "$kit"/web "$kit"/trainer/[!m]*.o "$kit"/libstorage.a "$kit"/libapi.a "$kit"/libdaemon*.a "$kit"/libcli.a
find "$kit" -type f \( -name '*.o' -o -name '*.a' -o -perm -u+x \) -exec strip -g {} +
du -sh "$kit" | awk '{print "gpu-kit: " $1 " in " $2}'
