// SPDX-License-Identifier: Apache-2.0
// Examines a machine for what makes benchmarks fail, skip or lie. Pure apart from reading files below `root`, so that every
// finding can be tested.
#pragma once
#include <aisp/needs.hpp>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/words.hpp"
#include "machine/machine.hpp"

namespace aisp::machine {

enum class Level { ok, info, warning, problem };
constexpr base::Words<4> words_of(Level) { return {{"ok", "info", "warning", "problem"}}; }

struct Diagnosis {
  std::string name;  // "driver", "gpu 0 clocks", "library cuBLAS"
  Level level = Level::ok;
  std::string what;
  std::string advice;  // never empty for warnings and problems
};
template <class Visitor>
void describe(Diagnosis& f, Visitor& visit) {
  visit("name", f.name);
  visit("level", f.level);
  visit("what", f.what);
  visit("advice", f.advice);
}

struct Surroundings {
  std::filesystem::path root = "/";                                // where proc, sys and dev are read
  std::filesystem::path artifacts = ".";                           // where runs are written
  std::function<std::string(Library)> find_library;                // machine::locate when empty
  std::string cutlass_refusal;                                     // with find_library: why CUTLASS's library is not used
  std::optional<std::string> toolkit;                              // version of nvcc; looked for when absent
  std::string built;                                               // for which GPUs this executable has code
  std::function<bool(std::string_view)> assembles_tcgen05;         // for a target, by the toolkit; empty: there is no assembler
  std::function<std::optional<std::string>(int)> tcgen05_product;  // of a GPU (tcgen05.hpp), when it was asked
};

// Toolkits may be in these folders, the first one counts.
std::vector<std::filesystem::path> toolkit_homes(const std::filesystem::path& root = "/");

using Findings = std::vector<Diagnosis>;
Findings examine(const Machine& machine, const Surroundings& surroundings = {});
// Its parts.
void examine_gpu(const Gpu& gpu, const Surroundings& surroundings, Findings& findings);
void examine_host(const Machine& machine, const Surroundings& surroundings, Findings& findings);
Level worst(const std::vector<Diagnosis>& findings);

}  // namespace aisp::machine
