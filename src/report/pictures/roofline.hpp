// SPDX-License-Identifier: Apache-2.0
// The places of pairs below their machine's limits: FLOPs a byte against FLOPs a second.
#pragma once
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "evidence/expectations/expectations.hpp"
#include "report/pictures/svg.hpp"

namespace aisp::report {

struct RooflinePoint {
  std::string variant;
  evidence::VariantRole role = evidence::VariantRole::optimized;
  bool lesson = false;
  double median_ms = 0;
  evidence::DeclaredCost cost;
  std::optional<evidence::Floor> floor;  // of a run's result

  bool crosses_memory() const;  // its bytes are of device or host memory, not of a link
  bool has_place() const;       // FLOPs, bytes of memory and a time, all finite: it can be drawn
  double intensity() const;     // FLOP/byte
  double flops_s() const;
  double bytes_s() const;
};

struct RooflinePair {
  std::string target;
  bool stale = false;
  evidence::Recorded recorded;
  evidence::ResultCeilings ceilings;  // nothing in it where none is known
  std::vector<RooflinePoint> points;  // baseline first

  std::string swept_target() const;  // of a case of a sweep, without the case; empty otherwise
  bool is_drawn() const;             // baseline and lesson have a place
};

// The pairs of one kind of machine.
struct Roofline {
  std::string hardware;
  std::string machine;                // of the latest record
  evidence::ResultCeilings ceilings;  // those of its pairs, the highest where they differ; of hosts the latest
  bool ceilings_differ = false;
  std::vector<RooflinePair> pairs;

  std::size_t drawn() const;
  std::string title() const;  // "Chapter 7 on h200"; of several chapters "h200"
};

// Digests of the present code of pairs, by target, one for each architecture.
using Digests = std::map<std::string, std::vector<std::string>>;

// One for each kind of hardware. A pair is stale if its record is of code that `present` does not have; `chapters`: none means
// all.
std::vector<Roofline> rooflines(const std::vector<evidence::Expectations>& all, const Digests& present,
                                const std::vector<std::string>& chapters);

// Gives the points of a run's pairs the lower bounds of its results, so that both show the same share of a roof.
void take_floors(std::vector<Roofline>& rooflines, std::span<const evidence::PairResult> pairs);

// Cells of a small table about the lessons, the heading first: by roof how many come near it, and which stays farthest below;
// without what stands on guesses. The heading alone where nothing is known.
std::vector<std::vector<std::string>> roofline_summary(const Roofline& roofline);

// Cells of a table, the heading first. A pair without FLOPs has its bandwidth only.
std::vector<std::vector<std::string>> roofline_rows(const Roofline& roofline);
std::string roofline_json(const std::vector<Roofline>& rooflines);  // docs/schema/roofline.schema.json
std::string ceilings_text(
    const evidence::ResultCeilings& ceilings);  // "memory 4.25 TB/s, bf16 ~790 TFLOP/s (SOURCE)"; ~: a guess
// Where the roofs meet: "bf16 172, fp32 14.3 FLOP/byte; memory limits below, arithmetic above"; empty where no two are known.
std::string ridges_text(const evidence::ResultCeilings& ceilings);
// "2 pairs without FLOPs per byte of memory are in the table only"; empty when all are drawn.
std::string left_out_text(const Roofline& roofline);

// "92.0 % of memory": the variant's share of its nearer roof; empty where none is known.
std::string roof_text(const RooflinePair& pair, const RooflinePoint& point);

// Its pairs are numbered, and named below.
svg::Picture roofline_picture(const Roofline& roofline, double width);
std::string roofline_svg(const Roofline& roofline);  // alone in a file

}  // namespace aisp::report
