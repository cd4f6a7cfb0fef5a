// SPDX-License-Identifier: Apache-2.0
#include "cli/requirements.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <set>

#include "base/error.hpp"
#include "base/text.hpp"
#include "cli/flags.hpp"
#include "evidence/expectations/fingerprint.hpp"

namespace aisp::cli {
namespace {

using base::Error;
using base::Exit;
using evidence::PairResult;
using evidence::Status;

bool ran(const PairResult& result) { return result.status != Status::skipped; }

// Those of each number of GPUs that a pair may take here, and that of host pairs.
std::set<std::string> possible_keys(const machine::Machine& machine, const std::vector<int>& gpus) {
  std::set<std::string> keys{machine::hardware_key(machine, {})};
  for (std::size_t first = 0; first < gpus.size(); ++first)
    for (std::size_t many = 1; first + many <= gpus.size(); ++many) {
      const auto begin = gpus.begin() + static_cast<std::ptrdiff_t>(first);
      keys.insert(machine::hardware_key(machine, {begin, begin + static_cast<std::ptrdiff_t>(many)}));
    }
  return keys;
}

}  // namespace

void add_require(CLI::App& app, std::vector<std::string>& given, const char* help) {
  add_repeated(app, "--require", given, "WHAT,...", help);
}

Requirements::Requirements(const std::vector<std::string>& given) {
  for (const std::string& value : given)
    for (const std::string& field : base::split(value, ',')) {
      const std::string word{base::trim(field)};
      const auto is_letter = [](unsigned char c) { return std::islower(c) != 0; };
      const bool is_key = std::ranges::any_of(word, is_letter) &&
                          std::ranges::all_of(word, [&](unsigned char c) { return is_letter(c) || std::isdigit(c) || c == '_'; });
      const std::optional<std::size_t> number = base::parse_number<std::size_t>(word);
      if (!is_key && number.value_or(0) == 0)
        throw Error{
            Exit::usage,
            fmt::format("--require '{}' must be gpu, a key of hardware as h200 (the first line of aisp doctor says which this "
                        "machine has), or a number of pairs from 1 on",
                        base::one_line(word, 40))};
      if (number) pairs_ = std::max(pairs_, *number);
      else if (word == "gpu") gpu_ = true;
      else hardware_.push_back(word);
    }
}

void Requirements::demand_possible(const machine::Machine& machine, const std::vector<int>& gpus) const {
  if (gpu_ && gpus.empty())
    throw Error{Exit::unfit, machine.gpus.empty() ? fmt::format("--require gpu: {}; {}", machine.cuda_error, machine.cuda_advice)
                                                  : std::string{"--require gpu: no GPU is among --gpus"}};
  const std::set<std::string> here = possible_keys(machine, gpus);
  for (const std::string& key : hardware_)
    if (!here.contains(key))
      throw Error{Exit::unfit, fmt::format("--require {}: this machine is {}{}", key, fmt::join(here, ", "),
                                           machine.gpus.empty() ? "; " + machine.cuda_error : "")};
}

void Requirements::demand_no_pairs() const {
  if (pairs_ > 0)
    throw Error{Exit::usage, fmt::format("--require {}: no pair is run here; require gpu or a key of hardware as h200", pairs_)};
}

void Requirements::demand_met(const evidence::SuiteResult& suite, const evidence::Manifest& manifest) const {
  const auto any = [&](const auto& fits) {
    return std::ranges::any_of(suite.pairs, [&](const PairResult& result) { return ran(result) && fits(result); });
  };
  if (gpu_ && !any([](const PairResult& result) { return result.device == evidence::Device::gpu; }))
    throw Error{Exit::unfit, "--require gpu: no pair ran on a GPU; the lines above say why"};
  for (const std::string& key : hardware_)
    if (!any([&](const PairResult& result) { return evidence::hardware_key(result, manifest) == key; }))
      throw Error{Exit::unfit, fmt::format("--require {}: no pair ran on that hardware; the lines above say why", key)};
  std::set<std::string> pairs;
  for (const PairResult& result : suite.pairs)
    if (ran(result)) pairs.insert(result.target);
  if (pairs.size() < pairs_)
    throw Error{Exit::unfit, fmt::format("--require {}: {} ran", pairs_, base::plural(pairs.size(), "pair"))};
}

void demand_anything_ran(const evidence::SuiteResult& suite) {
  if (suite.pairs.empty() || std::ranges::any_of(suite.pairs, ran)) return;
  throw Error{Exit::nothing, fmt::format("nothing ran: {}; --allow-skipped makes that good",
                                         suite.pairs.size() == 1 ? "the pair was skipped"
                                                                 : fmt::format("all {} pairs were skipped", suite.pairs.size()))};
}

}  // namespace aisp::cli
