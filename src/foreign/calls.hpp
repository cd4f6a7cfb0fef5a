// SPDX-License-Identifier: Apache-2.0
// The C interface of libaisp: a pair whose variants are functions of another language. Declaration and answer are JSON;
// python/src/aisp/library.py is the other side.
#pragma once
#include <cstdint>

extern "C" {

// All return 0, or something else when they failed, and `trouble` says why in one line then.
struct aisp_calls {
  // Begins a point of the declaration, counted from 0: where its buffers lie, in the order of their declaration. All calls up to
  // the next one are about this point.
  int (*placed)(int point, void* const* buffers);
  // New inputs, or new ones of those that are constant from run to run: where the contents of each lie, in the order of their
  // declaration. They are copied.
  int (*make_inputs)(int constant, std::uint64_t seed, const void** contents);
  int (*prepare)(int variant, void* stream);
  // Queues the variant's work on the stream; null for work of the host, which is done when it returns.
  int (*run)(int variant, void* stream);
  // Only for functions that return their results: where those of the last run lie, in the order of the outputs.
  int (*results)(int variant, const void** contents);
  // They were copied, or will be by what the stream holds. Told for each: whether nobody but the caller's interface can see its
  // memory any more, so that it may be overwritten; an error where the function keeps it.
  int (*copied)(std::uint8_t* ours);
  // Called once memory that may be overwritten was, and is free.
  int (*overwritten)();
  // Gives the outputs of the reference in float64, for one quantized variant, or for all variants with -1.
  int (*reference)(int variant, const double** contents);
  const char* (*trouble)();
};

// Measures a pair in this process, at each of its points. `answer` is JSON to be given to aisp_release: {"status", "text",
// "folder", "suite", "pictures", "notes"}, or {"status", "error"}. Returns the status, which is that of the command `aisp run`.
// One call at a time.
int aisp_bench(const char* declaration, const aisp_calls* calls, char** answer);
void aisp_release(char* answer);

}  // extern "C"
