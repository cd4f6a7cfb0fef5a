// SPDX-License-Identifier: Apache-2.0
// The figures of a variant that reports show. A new one is a field of the result, with its line in json.cpp, and a row of the
// table in quantities.cpp: CSV, the tables of Markdown and HTML, compare and the glossary iterate over it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "evidence/range.hpp"
#include "evidence/result.hpp"

namespace aisp::evidence {

enum class Format : std::uint8_t {
  number,
  coefficient,
  count,
  milliseconds,
  bytes,
  joules,
  watts,
  percent,
  ratio,
  error,
  flop_rate,
  byte_rate
};

struct Quantity {
  std::string_view id;     // CSV's column and the glossary's term
  std::string_view group;  // the table that shows it; empty: none, or one made by hand
  std::string_view title;  // its heading there
  Format format = Format::number;
  bool in_csv = false, interval_in_csv = false;  // the interval in columns of its own, after it
  bool last_in_csv = false;                      // after all other columns, so that these keep their places
  std::string_view meaning{};                    // for the glossary; empty: the name is clear
  // Returns nothing if the variant has no such figure, or may not claim it. Without an interval low and high are the value.
  std::optional<Range> (*get)(const PairResult& pair, const VariantResult& variant) = nullptr;
  std::string (*words)(const PairResult& pair,
                       const VariantResult& variant) = nullptr;  // instead of `get`, for text

  // How `compare` treats the quantity; unused without a name.
  struct Compared {
    std::string_view name{}, unit{};
    Direction better = Direction::lower;
    // Whether its interval comes from samples; empty: it never does, and a single reading is no regression.
    bool (*sampled)(const VariantResult& variant) = nullptr;
    std::optional<Range> (*get)(const VariantResult& variant) = nullptr;        // empty: `get` above
    const std::vector<double>& (*raw)(const VariantResult& variant) = nullptr;  // its samples, if they are kept
  };
  Compared compared{};
};

// Names of compared quantities that code refers to; that of the time is time_metric.
inline constexpr std::string_view speedup_metric = "speedup", energy_metric = "energy", prepare_metric = "prepare";
// Units with a form of their own in text. Metrics of pairs may have any other.
inline constexpr std::string_view milliseconds_unit = "ms", bytes_unit = "B", times_unit = "x";

std::span<const Quantity> quantities();
// With fewer samples their spread is unknown.
inline constexpr std::size_t fewest_samples = 6;

inline constexpr std::string_view quantity_groups[] = {"Timing", "Accuracy", "Inference", "Energy", "Memory"};

// "98 %, 1180 requests/s (TTFT 5.0 ms, TPOT 0.20 ms)"
std::string goodput_text(const LatencyGoodput& goodput);

// Returns the part of the way from the baseline's median time to the variant's lower bound that the variant has gone, in percent,
// with the interval that its speedup gives it: 0 is as slow as the baseline, 100 at the machine's limit. Nothing where no speedup
// may be claimed, where something else than time judges, without a lower bound, and where the baseline is so near to it (5 %)
// that there is no gap.
std::optional<Range> gap_closed(const PairResult& pair, const VariantResult& variant);

}  // namespace aisp::evidence
