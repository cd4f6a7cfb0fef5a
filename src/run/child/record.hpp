// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <aisp/pair.hpp>

#include <string>
#include <string_view>
#include <vector>

#include "evidence/result.hpp"
#include "pair/ranks.hpp"
#include "pair/registry.hpp"
#include "run/child/stages.hpp"
#include "run/wire/request.hpp"
#include "verify/verifier.hpp"

namespace aisp::run {

// The result of a pair while its stages run. They write measurements into result(); only this class changes status, reason,
// problems, warnings and losses of the pair and its variants.
class Record {
 public:
  // Starts with all variants of the pair as passed. Everything referred to must outlive it.
  Record(const pair::Entry& entry, const Request& request, const Stages& stages, const Reporter& reporter);

  evidence::PairResult& result() { return result_; }
  const evidence::PairResult& result() const { return result_; }
  bool passed() const { return result_.status == evidence::Status::passed; }
  evidence::VariantResult& of(std::string_view variant);  // one of the pair's
  std::vector<const Variant*> active() const;             // baseline first; without skipped variants and libraries that failed
  evidence::Stage stage() const { return stages_.current(); }

  void skip(std::string reason);
  void skip_variant(std::string_view variant, std::string reason);
  // Fails the pair. `variant`: empty if no single variant is at fault.
  void problem(std::string variant, std::string check, std::string message, std::string advice = {});
  // Reports what a check found without failing the pair: its results hold.
  void complain(std::string variant, std::string check, std::string message, std::string advice);
  // Leaves a library's variant out; a variant of the pair's own fails the pair.
  void fail_variant(evidence::VariantResult& variant, const std::string& check, std::string message, std::string advice);
  // Records a variant's failures. Throws Unsupported if this machine cannot run the baseline.
  void absorb_failures(const verify::Outcome& outcome);
  // Adds what other ranks have found since the last call, so that all go on alike: what failed on one has failed on all.
  void agree(pair::RankGroup& ranks);
  void warn(std::string warning) { result_.warnings.push_back(std::move(warning)); }
  void note(std::string note) { result_.notes.push_back(std::move(note)); }
  void lose(evidence::LostKind kind, std::string text) { result_.lost.push_back({kind, std::move(text)}); }

  // Attributes problems to this edge until the next begins or the edges end, even that of an exception that is caught later.
  void begin_edge(const Case& edge);
  void end_edges() { edge_.clear(); }
  const std::string& edge() const { return edge_; }  // "edge empty (rows=0)"; empty outside of one
  std::string located(const std::string& text) const { return edge_.empty() ? text : edge_ + ": " + text; }

  // Notes that each variant has been verified.
  void verified() { verified_ = true; }

  // Sends the result so far to the parent, which uses it if a later stage does not end.
  void send_partial() const;
  void send(const std::string& line) const { reporter_.send(line); }
  void send_measured();  // the same, complete but for profiles of the variants
  // Returns the final result. Call it once, when no stage runs any more.
  evidence::PairResult finish();

 private:
  void adopt(const std::string& rank, const std::string& findings);
  void leave_out(evidence::VariantResult& library, const std::string& why);
  void note_host_memory();

  const Pair& pair_;
  const Stages& stages_;
  const Reporter& reporter_;
  evidence::PairResult result_;
  std::string edge_;
  std::size_t problems_told_ = 0, warnings_told_ = 0;  // to other ranks
  bool verified_ = false;
};

}  // namespace aisp::run
