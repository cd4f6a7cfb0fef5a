// SPDX-License-Identifier: Apache-2.0
// Every GPU needs the same weights. Each can upload all of them over its own PCIe link, and then the links are the limit. Or each
// uploads a share, and the GPUs pull the other shares from each other over NVLink, which is several times faster, chunk by chunk
// while the uploads go on: then every link carries the weights once among all GPUs instead of once per GPU.
#include <aisp/pair.hpp>
#include <aisp/peer.hpp>

#include <algorithm>
#include <deque>
#include <string>
#include <vector>

namespace aisp::ch02 {
namespace {

// Large enough for both links' full speed; the last chunk's way over NVLink is all that comes after the uploads.
constexpr std::size_t chunk_floats = (std::size_t{8} << 20) / sizeof(float);

class TopologyAwareUpload final : public Workload {
 public:
  explicit TopologyAwareUpload(Setup& setup)
      : gpus_{static_cast<std::size_t>(setup.gpus())},
        count_{setup.scaled(std::size_t{1} << 27, gpus_ * 1024)},
        slice_{count_ / gpus_},
        weights_{setup.input<float>(count_, uniform(-1, 1), {.name = "weights", .memory = Memory::pinned})} {
    for (std::size_t gpu = 0; gpu < gpus_; ++gpu) {
      const int device = static_cast<int>(gpu);
      ordinals_.push_back(setup.device_ordinal(device));
      const std::string name = "weights on GPU " + std::to_string(gpu);
      copies_.push_back(setup.output<float>(count_, {.name = name.c_str(), .device = device}));
      for (std::size_t chunk = 0; chunk < chunks(); ++chunk) uploaded_.push_back(setup.event(device));
      for (std::size_t source = 0; source < gpus_; ++source) {  // one more than needed: nobody pulls from itself
        pulls_.push_back(setup.stream(device));
        pulled_.push_back(setup.event(device));
      }
    }
    for (const int user : ordinals_)
      for (const int owner : ordinals_)
        if (user != owner) access_.emplace_back(user, owner);
  }

  // Each link carries its share of the weights, and NVLink the rest of them to each GPU.
  Cost cost() const override {
    const double share = static_cast<double>(slice_ * sizeof(float));
    return {.host_to_device = share, .peer_bytes = share * static_cast<double>(gpus_ - 1)};
  }

  double expected_output(int, std::size_t index) const override { return weights_.host(index); }

  void upload_all(Launch& launch) {
    for (std::size_t gpu = 0; gpu < gpus_; ++gpu)
      check(cudaMemcpyAsync(copies_[gpu], weights_, weights_.bytes(), cudaMemcpyHostToDevice, launch.streams[gpu]));
  }

  // Pulls have a stream for each pair of GPUs, so that none waits behind a chunk of another GPU that is late.
  void share_and_exchange(Launch& launch) {
    for (std::size_t chunk = 0; chunk < chunks(); ++chunk)
      for (std::size_t owner = 0; owner < gpus_; ++owner) {
        upload(owner, chunk, launch.streams[owner]);
        for (std::size_t distance = 1; distance < gpus_; ++distance) pull((owner + distance) % gpus_, owner, chunk);
      }
    for (std::size_t gpu = 0; gpu < gpus_; ++gpu)
      for (std::size_t owner = 0; owner < gpus_; ++owner) {
        if (owner == gpu) continue;
        check(cudaEventRecord(pulled_[gpu * gpus_ + owner], pulls_[gpu * gpus_ + owner]));
        check(cudaStreamWaitEvent(launch.streams[gpu], pulled_[gpu * gpus_ + owner]));
      }
  }

 private:
  std::size_t chunks() const { return (slice_ + chunk_floats - 1) / chunk_floats; }
  std::size_t first_of(std::size_t owner, std::size_t chunk) const { return owner * slice_ + chunk * chunk_floats; }
  std::size_t chunk_bytes(std::size_t chunk) const {
    return std::min(chunk_floats, slice_ - chunk * chunk_floats) * sizeof(float);
  }

  void upload(std::size_t owner, std::size_t chunk, cudaStream_t stream) {
    const std::size_t first = first_of(owner, chunk);
    check(cudaMemcpyAsync(copies_[owner] + first, weights_ + first, chunk_bytes(chunk), cudaMemcpyHostToDevice, stream));
    check(cudaEventRecord(uploaded_[owner * chunks() + chunk], stream));
  }
  void pull(std::size_t gpu, std::size_t owner, std::size_t chunk) {
    const cudaStream_t stream = pulls_[gpu * gpus_ + owner];
    const std::size_t first = first_of(owner, chunk);
    check(cudaStreamWaitEvent(stream, uploaded_[owner * chunks() + chunk]));
    check(cudaMemcpyPeerAsync(copies_[gpu] + first, ordinals_[gpu], copies_[owner] + first, ordinals_[owner], chunk_bytes(chunk),
                              stream));
  }

  std::size_t gpus_, count_, slice_;
  Input<float> weights_;
  std::vector<int> ordinals_;
  std::vector<Output<float>> copies_;
  std::vector<cudaEvent_t> uploaded_;  // of each GPU's chunks
  std::vector<cudaStream_t> pulls_;    // at [to * gpus + from]
  std::vector<cudaEvent_t> pulled_;
  std::deque<PeerAccess> access_;
};

}  // namespace

extern constinit const Pair topology_aware_upload{
    .teaches = "each GPU has its own PCIe link, and NVLink is seven times faster: upload shares and exchange them",
    .lesson = "share_and_exchange",
    .make = make<TopologyAwareUpload>,
    .baseline = {.name = "upload_all", .run = call<&TopologyAwareUpload::upload_all>},
    .optimized = variants({{.name = "share_and_exchange", .run = call<&TopologyAwareUpload::share_and_exchange>}}),
    .bound = Bound::transfer,
    .tolerance = exact,
    .needs = {.gpus = 2, .peer_access = true},
};

}  // namespace aisp::ch02
