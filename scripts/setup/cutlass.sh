# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# Gets CUTLASS's headers from NVIDIA's wheel on PyPI into .cutlass. Without them everything but libaisp_cutlass.so is built all the same.

cutlass_wheel=nvidia-cutlass==4.2.0.0

get_cutlass() {
  local prefix=$root/.cutlass work=$root/.cutlass.partial headers
  say "CUTLASS: installing the headers of $cutlass_wheel into .cutlass (6 MB to download, 27 MB on disk)"
  unpack_wheels "$work" cutlass-wheel "$cutlass_wheel" || return 1
  if ((dry_run)); then return; fi
  headers=$work/site/cutlass_library/source/include
  [[ -f $headers/cutlass/version.h ]] || return 1
  rm -rf "$prefix" && mkdir "$prefix" && cp "$work"/site/nvidia_cutlass-*.dist-info/licenses/LICENSE.txt "$prefix/" &&
    mv "$headers" "$prefix/" && echo "$cutlass_wheel" >"$prefix/wheel.txt" && rm -rf "$work"
}

find_or_get_cutlass() {
  if [[ -n ${CUTLASS_HOME:-} || (-f $root/.cutlass/wheel.txt && $(<"$root/.cutlass/wheel.txt") == "$cutlass_wheel") ]]; then return; fi
  if ! get_cutlass 2>/dev/null; then
    rm -rf "$root/.cutlass.partial"
    say "warning: no CUTLASS ($cutlass_wheel could not be installed from PyPI; $logs/cutlass-*.log): its variants are skipped; run ./setup.sh --cutlass, or set CUTLASS_HOME" >&2
  fi
}
