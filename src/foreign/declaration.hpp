// SPDX-License-Identifier: Apache-2.0
// A pair that was declared at run time, as JSON.
#pragma once
#include <aisp/pair.hpp>

#include <deque>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "pair/code.hpp"
#include "pair/registry.hpp"

namespace aisp::foreign {

struct DeclaredBuffer {
  std::string name;
  Role role = Role::input;
  ElementType type = ElementType::record;
  std::size_t element_bytes = 1;
  std::size_t count = 0;
  bool constant = false;
  bool unordered = false;
};

// A pair at one choice of its sizes.
class Declaration {
 public:
  // Throws base::Error (usage) for what is no declaration, and for faults in it.
  explicit Declaration(const nlohmann::json& json);
  Declaration(const Declaration&) = delete;
  Declaration& operator=(const Declaration&) = delete;

  const pair::Entry& entry() const { return entry_; }
  const std::vector<DeclaredBuffer>& buffers() const { return buffers_; }
  const Cost& cost() const { return cost_; }
  bool returns_results() const { return returns_results_; }
  bool is_swept() const { return !pair_.sweep.empty(); }
  pair::Code code() const { return {.digests = {&digest_, 1}, .files = {}}; }

 private:
  std::string_view keep(const nlohmann::json& text) { return texts_.emplace_back(text.get<std::string>()); }
  Variants variants_of(const nlohmann::json& list, int& number);
  Variant variant(const nlohmann::json& json, int number);
  void declare_sizes(const nlohmann::json& sizes, const std::string& case_name);

  std::deque<std::string> texts_;  // what the views below look at
  Pair pair_;
  pair::Entry entry_;
  std::vector<DeclaredBuffer> buffers_;
  Cost cost_;
  bool returns_results_ = false;
  pair::CodeDigest digest_;
};

}  // namespace aisp::foreign
