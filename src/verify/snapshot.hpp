// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <vector>

#include "pair/session.hpp"

namespace aisp::verify {

// A copy of one output, on the same side (device or host) as the output itself.
class Snapshot {
 public:
  Snapshot() = default;
  // Room for the whole buffer. Allocating can wait for all work on a GPU, so it is done before what is to be caught in the act.
  Snapshot(pair::Session& session, const Buffer& buffer);
  // Of the first `count` elements.
  void take(pair::Session& session, const Buffer& buffer, std::size_t count);
  ~Snapshot();
  Snapshot(Snapshot&& other) noexcept;
  Snapshot& operator=(Snapshot&& other) noexcept;

  pair::Elements elements() const { return elements_; }
  void sort();
  // Values of the given elements as float64.
  std::vector<double> values(const std::vector<std::size_t>& indices) const;

 private:
  pair::Elements elements_;
  void* data_ = nullptr;
};

}  // namespace aisp::verify
