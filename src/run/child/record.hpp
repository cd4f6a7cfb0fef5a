// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <aisp/pair.hpp>

#include <string>
#include <string_view>
#include <vector>

#include "evidence/result.hpp"
#include "pair/registry.hpp"
#include "run/child/stages.hpp"
#include "run/wire/request.hpp"
#include "verify/verifier.hpp"

namespace aisp::run {

// The result of a pair while its stages run. They write what they measured into result(); what becomes of the pair and its
// variants (status, reason, problems, warnings, what is lost) is said here and nowhere else.
class Record {
 public:
  // All variants of the pair, passed as long as nothing is found. Everything referred to must outlive it.
  Record(const pair::Entry& entry, const Request& request, const Stages& stages, const Reporter& reporter);

  evidence::PairResult& result() { return result_; }
  const evidence::PairResult& result() const { return result_; }
  bool passed() const { return result_.status == evidence::Status::passed; }
  evidence::VariantResult& of(std::string_view variant);  // one of the pair's
  std::vector<const Variant*> active() const;             // baseline first; without what was skipped and libraries that failed
  evidence::Stage stage() const { return stages_.current(); }

  void skip(std::string reason);
  void skip_variant(std::string_view variant, std::string reason);
  // The pair failed. `variant`: empty where it is not one's fault.
  void problem(std::string variant, std::string check, std::string message, std::string advice = {});
  // A library's variant that fails is left out; one of the pair's own costs the pair its result.
  void fail_variant(evidence::VariantResult& variant, const std::string& check, std::string message, std::string advice);
  // Throws Unsupported where it is the baseline that this machine cannot run.
  void absorb_failures(const verify::Outcome& outcome);
  void warn(std::string warning) { result_.warnings.push_back(std::move(warning)); }
  void lose(evidence::LostKind kind, std::string text) { result_.lost.push_back({kind, std::move(text)}); }

  // Problems are this edge's until the next begins or the edges end: also that of an exception which leaves it, when whoever
  // catches that comes to tell.
  void begin_edge(const Case& edge);
  void end_edges() { edge_.clear(); }
  const std::string& edge() const { return edge_; }  // "edge empty (rows=0)"; empty outside of one
  std::string located(const std::string& text) const { return edge_.empty() ? text : edge_ + ": " + text; }

  // From here on there is something to say of each variant.
  void verified() { verified_ = true; }

  // To the parent, which goes by it when a later stage does not end.
  void send_partial() const;
  void send_measured();  // the same with all that is known without looking inside the variants
  // To be called once, when no stage runs any more.
  evidence::PairResult finish();

 private:
  void leave_out(evidence::VariantResult& library, const std::string& why);
  void note_host_memory();

  const Pair& pair_;
  const Stages& stages_;
  const Reporter& reporter_;
  evidence::PairResult result_;
  std::string edge_;
  bool verified_ = false;
};

}  // namespace aisp::run
