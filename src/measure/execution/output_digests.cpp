// SPDX-License-Identifier: Apache-2.0
#include "measure/execution/output_digests.hpp"

#include <aisp/check.hpp>

#include <algorithm>

namespace aisp::measure {

OutputDigests::OutputDigests(pair::Session& session) : session_{session} {
  const std::size_t bytes = (session.results().size() + 1) * sizeof(std::uint64_t);
  for (std::size_t i = 0; i < session.gpu_ordinals().size(); ++i) {
    check(cudaSetDevice(session.gpu_ordinals()[i]));
    void* cells = nullptr;
    void* found = nullptr;
    cudaStream_t stream = nullptr;
    check(cudaMalloc(&cells, bytes));
    check(cudaHostAlloc(&found, bytes, cudaHostAllocPortable | cudaHostAllocMapped));
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    cells_.push_back(static_cast<std::uint64_t*>(cells));
    found_.push_back(static_cast<std::uint64_t*>(found));
    own_streams_.push_back(stream);
    main_streams_.push_back(session.launch().streams[i]);
  }
  if (!cells_.empty()) check(cudaSetDevice(session.gpu_ordinals().front()));
}

OutputDigests::~OutputDigests() {
  for (std::size_t i = 0; i < cells_.size(); ++i) {
    cudaFree(cells_[i]);
    cudaFreeHost(found_[i]);
    cudaStreamDestroy(own_streams_[i]);
  }
}

void OutputDigests::load() {
  const std::size_t spare = session_.results().size();
  for (std::size_t gpu = 0; gpu < cells_.size(); ++gpu) {
    const int ordinal = session_.gpu_ordinals()[gpu];
    check(cudaSetDevice(ordinal));
    for (const cudaStream_t stream : {main_streams_[gpu], own_streams_[gpu]}) {
      pair::queue_clear(cells_[gpu], spare + 1, ordinal, stream);
      pair::queue_digest(cells_[gpu], spare * sizeof(std::uint64_t), ordinal, cells_[gpu] + spare, stream);
      pair::queue_publish(cells_[gpu], found_[gpu], spare + 1, ordinal, stream);
      check(cudaStreamSynchronize(stream));
    }
  }
  if (!cells_.empty()) check(cudaSetDevice(session_.gpu_ordinals().front()));
}

void OutputDigests::queue(const pair::DigestKey& key) { queue_on(main_streams_, key); }
void OutputDigests::queue_aside() { queue_on(own_streams_, {}); }

void OutputDigests::queue_on(const std::vector<cudaStream_t>& streams, const pair::DigestKey& key) {
  const std::vector<Buffer*>& results = session_.results();
  if (results.empty()) return;
  for (std::size_t gpu = 0; gpu < cells_.size(); ++gpu) {
    const int ordinal = session_.gpu_ordinals()[gpu];
    if (cells_.size() > 1) check(cudaSetDevice(ordinal));
    pair::queue_clear(cells_[gpu], results.size(), ordinal, streams[gpu]);
    for (std::size_t k = 0; k < results.size(); ++k)
      if (session_.gpu_of(*results[k]) == ordinal)
        pair::queue_digest(results[k]->data, results[k]->bytes(), ordinal, cells_[gpu] + k, streams[gpu], key);
    pair::queue_publish(cells_[gpu], found_[gpu], results.size(), ordinal, streams[gpu]);
  }
  if (cells_.size() > 1) check(cudaSetDevice(session_.gpu_ordinals().front()));
}

bool OutputDigests::ready() const {
  return std::ranges::all_of(own_streams_, [](cudaStream_t stream) {
    const cudaError_t status = cudaStreamQuery(stream);
    if (status != cudaErrorNotReady) check(status);
    return status == cudaSuccess;
  });
}

std::vector<std::uint64_t> OutputDigests::read(const pair::DigestKey& key) const {
  const std::vector<Buffer*>& results = session_.results();
  std::vector<std::uint64_t> digests(results.size());
  for (std::size_t k = 0; k < results.size(); ++k) {
    const Buffer& buffer = *results[k];
    if (pair::on_device(buffer)) digests[k] = found_[static_cast<std::size_t>(buffer.device)][k];
    else digests[k] = pair::digest(buffer.data, buffer.bytes(), -1, key);
  }
  return digests;
}

}  // namespace aisp::measure
