// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <vector>

#include "pair/session.hpp"

namespace aisp::pair {

// A copy of one output, on the same side (device or host) as the output itself.
class Snapshot {
 public:
  Snapshot() = default;
  // Allocates room for the whole buffer. Allocating can wait for all work on a GPU, so it is done before the execution to be
  // checked.
  Snapshot(Session& session, const Buffer& buffer);
  ~Snapshot();
  Snapshot(Snapshot&& other) noexcept;
  Snapshot& operator=(Snapshot&& other) noexcept;

  // Queues a copy of device memory on the pair's own stream, right after its work: later writes of other streams are not in the
  // copy. finish() copies host memory, when the stream is idle.
  void queue();
  void finish();
  // Limits the snapshot to its first `count` elements.
  void shorten(std::size_t count) { elements_.count = count; }

  Elements elements() const { return elements_; }
  const Buffer& buffer() const { return *buffer_; }
  void sort();
  // Returns the values of the given elements as float64.
  std::vector<double> values(const std::vector<std::size_t>& indices) const;

 private:
  Session* session_ = nullptr;
  const Buffer* buffer_ = nullptr;
  Elements elements_;
  void* data_ = nullptr;
};

}  // namespace aisp::pair
