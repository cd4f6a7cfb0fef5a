// SPDX-License-Identifier: Apache-2.0
// Records for people and for scripts.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "machine/machine.hpp"
#include "peak/record.hpp"

namespace aisp::peak {

struct Reference {
  double value = 0;
  std::string source;
  std::string_view doubt{};  // why it may be wrong; empty: no doubt
  // Returns `measured` in percent of the reference: more is better for rates, less for times.
  double percent(double measured) const { return measured / value * 100; }
};

// The maker's figure of that GPU; nothing where no sheet states one.
std::optional<Reference> vendor_figure(const machine::Gpu& gpu, std::string_view id);
// Returns the figure that our own runs recorded on the same chip.
std::optional<Reference> recorded_figure(const machine::Gpu& gpu, std::string_view id);

std::string value_text(Unit unit, double value);  // "4.25 TB/s"
// "675 TFLOP/s, 1455 MHz, 690 W, power cap"; "-" for none
std::string sustained_text(Unit unit, const std::optional<Sustained>& sustained);

// The first row is the heading. `gpu`: whose references are shown; null for the host.
std::vector<std::vector<std::string>> table_rows(const PeakRecord& record, const machine::Gpu* gpu);
// "NVIDIA H200, driver 580.159, 700 W; measured 2026-11-21T10:00:00Z"; of links "2 x NVIDIA H200, ..., NCCL 2.28.3; measured ..."
std::string heading(const PeakRecord& record);
// Lists figures that could not be measured, one line each: "FP8: this GPU has no FP8".
std::vector<std::string> missing(const PeakRecord& record);

// Why figures of data sheets in the table have the mark of doubt, a line for each reason: "HBM read, HBM copy: WHY".
std::vector<std::string> doubtful(const PeakRecord& record, const machine::Gpu* gpu);

// Adds the references to each figure of a record's JSON, and puts the figures in the order of the table.
void add_references(nlohmann::json& record, const machine::Gpu* gpu);

}  // namespace aisp::peak
