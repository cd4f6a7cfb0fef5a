// SPDX-License-Identifier: Apache-2.0
// The place of a crash: noted by the dying process, without allocating or locking, and reported by another one that reads the
// symbols.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace aisp::base {

// From here on a crash (SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT) writes one line to `descriptor`, {"crash":["FILE+0xOFFSET",
// ...]} with the innermost frame first, and then ends the process as it would have ended. Overflows of the calling thread's stack
// too.
void trace_crashes(int descriptor);

// "aisp::ch07::(anonymous namespace)::Transpose::naive(aisp::Launch&) + 0x1c" for "FILE+0xOFFSET", an offset in the file;
// "libcudart.so.13 + 0x4d0e2" where the file tells no function.
std::string frame_text(std::string_view place);

// A line for each frame of a crash, "\n#0 aisp::..." and so on, up to main(): nobody learns anything of the functions below it.
// Printable characters alone; empty where no place is known.
std::string stack_text(const std::vector<std::string>& places);

}  // namespace aisp::base
