// SPDX-License-Identifier: Apache-2.0
// Whether tcgen05 and tensor memory can be used here: by this toolkit's assembler, by this executable, by a GPU. doctor says so.
#pragma once
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "machine/chips.hpp"
#include "machine/machine.hpp"
#include "machine/needs.hpp"

namespace aisp::machine {

// "sm_100a", ... for the chips of the table with that answer.
std::vector<std::string> targets_with(Tcgen05 answer);

// Has `ptxas` assemble a program of a few instructions, one of which allocates tensor memory, for `target`. Throws
// base::Error when it cannot be started or does not end.
bool assembles_tcgen05(const std::filesystem::path& ptxas, std::string_view target, double limit_s = 20);

// The assembler of the first toolkit of `homes`; nothing when none has one.
std::optional<std::filesystem::path> find_assembler(const std::vector<std::filesystem::path>& homes);

// The result of the probe's tcgen05 product on each GPU that has it and for which this executable has code.
struct ProductAnswers {
  std::string error;                      // why nothing is known; empty otherwise
  std::map<int, std::string> by_ordinal;  // what is wrong with the product; empty when it is right
  std::optional<std::string> of(int ordinal) const;
};
// Has a child process ask, by the hidden command __probe_tcgen05; not even that where no GPU of `machine` could run it with code
// for the architectures `built`.
ProductAnswers probe_tcgen05(const Machine& machine, std::string_view built, double limit_s = 30,
                             const std::string& executable = "/proc/self/exe");
int probe_tcgen05_main(int fd);

// Returns doctor's answer for a GPU. `built`: as for has_code(); `product`: probe_tcgen05's answer for it, when it was asked.
Answer tcgen05_answer(const Gpu& gpu, std::string_view built, const std::optional<std::string>& product);

}  // namespace aisp::machine
