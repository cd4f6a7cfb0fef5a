// SPDX-License-Identifier: Apache-2.0
// A convolution of 32 images of 64 x 64 pixels by a filter of 3 x 3 taps, 256 to 256 channels in bf16. As a product it has a row
// for each pixel and a column for each output channel. Its left matrix holds nine shifted copies of the images: written out, that
// is nine times their bytes to memory and back. A product reads its operands tile by tile, and a tile of that matrix is a piece
// of the images that begins a pixel further left, right, up or down: it can be loaded straight from there.
#include <aisp/device/matrix.cuh>
#include <aisp/libraries/cublaslt.hpp>
#include <aisp/opened.hpp>
#include <aisp/pair.hpp>

#include <cmath>
#include <functional>
#include <string>
#include <type_traits>

#include "cudnn_convolution.hpp"
#include "gemm/gemm.hpp"
#include "window_gather.cuh"

namespace aisp::ch09 {
namespace {

using namespace conv;

// A row for each pixel: the channels of its nine neighbours, tap after tap. A thread moves 16 bytes of each.
__global__ __launch_bounds__(256) void im2col_kernel(const uint4* __restrict__ x, uint4* __restrict__ unfolded, Images images) {
  const unsigned packets = static_cast<unsigned>(images.channels / packet), i = blockIdx.x * 256 + threadIdx.x;
  const int pixel = static_cast<int>(i / packets), column = pixel % images.width, line = pixel / images.width % images.height;
  if (pixel >= images.pixels) return;
  uint4 seen[taps];
#pragma unroll
  for (int tap = 0; tap < taps; ++tap) {
    const int right = tap % filter - 1, down = tap / filter - 1;
    const bool inside = line + down >= 0 && line + down < images.height && column + right >= 0 && column + right < images.width;
    seen[tap] = inside ? x[static_cast<std::size_t>(pixel + down * images.width + right) * packets + i % packets]
                       : make_uint4(0, 0, 0, 0);
  }
#pragma unroll
  for (int tap = 0; tap < taps; ++tap)
    unfolded[(static_cast<std::size_t>(pixel) * taps + tap) * packets + i % packets] = seen[tap];
}

// Warps of 64 x 64; as many blocks on a multiprocessor as leave a thread 255 registers.
template <int tile_n>
struct ByMma {
  static constexpr int threads = tile_n, stages = 3, blocks = tile_n == 128 ? 2 : 3;
  static constexpr std::size_t shared_bytes = stages * stage_bytes<tile_n>;
};

template <int tile_n, class By = ByMma<tile_n>>
__global__ __launch_bounds__(By::threads, By::blocks) void implicit_mma_kernel(const bf16* x, const bf16* w,
                                                                               const gemm::RowsStore<bf16> y, const Images images,
                                                                               int channels_out) {
  constexpr int stages = By::stages, steps = step_channels / 16, bytes = stage_bytes<tile_n>;
  extern __shared__ __align__(1024) unsigned char memory[];
  const int t = threadIdx.x, lane = t % 32, warp_m = t / 32 % 2, warp_n = t / 64;
  const int top = first_pixel<tile_n>(channels_out), left = first_column<tile_n>(channels_out);
  Gather<tile_n, By::threads> gather{x, w, images, top, left};

  // For A lane l addresses row l % 16 of a fragment, chunk l / 16; for B, which lies along K as well, row l / 16 * 8 + l % 8,
  // chunk l / 8 % 2, so that both words of a column are neighbours. The chunk of another step differs in bits that XOR can flip.
  const std::uint32_t base = device::shared_address(memory);
  const std::uint32_t a_lane = base + (warp_m * 64 + lane % 16) * row_bytes + (lane / 16 ^ lane % 8) * 16;
  const std::uint32_t b_lane =
      base + a_bytes + (warp_n * 64 + lane / 16 * 8 + lane % 8) * row_bytes + (lane / 8 % 2 ^ lane % 8) * 16;
  unsigned a[2][4][4], b[2][4][4];  // fragments of this step and of the next
  const auto load_fragments = [&](int set, int slot, int step) {
#pragma unroll
    for (int i = 0; i < 4; ++i) device::load_matrices(a[set][i], (a_lane ^ step * 32) + slot * bytes + i * 16 * row_bytes);
#pragma unroll
    for (int i = 0; i < 4; ++i) device::load_matrices(b[set][i], (b_lane ^ step * 32) + slot * bytes + i * 16 * row_bytes);
  };
  float sums[4][32] = {};
  const auto multiply = [&](int set) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int j = 0; j < 8; ++j)
        device::mma_bf16(sums[i] + j * 4, a[set][i], b[set][j / 2][j % 2 * 2], b[set][j / 2][j % 2 * 2 + 1]);
  };

  const int tiles = taps * images.channels / step_channels;
  for (int slot = 0; slot < stages - 1; ++slot) {  // there are nine tiles or more
    gather.copy_next(memory + slot * bytes);
    device::commit_copies();
  }
  device::wait_copies<stages - 2>();
  __syncthreads();
  load_fragments(0, 0, 0);
  int reading = 0, writing = stages - 1;
  for (int tile = 0; tile < tiles; ++tile) {
#pragma unroll
    for (int step = 0; step < steps; ++step) {
      if (step == 0 && tile + stages - 1 < tiles) gather.copy_next(memory + writing * bytes);
      if (step == steps - 1) {    // the last fragments of this tile are in registers: on to the next
        device::commit_copies();  // also where there was nothing left to copy: waiting counts groups
        device::wait_copies<stages - 2>();
        __syncthreads();
        writing = reading;
        reading = (reading + 1) % stages;
      }
      load_fragments((step + 1) % 2, reading, (step + 1) % steps);  // after the last tile: unused
      multiply(step % 2);
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i)
    y.put(sums[i], {top + warp_m * 64 + i * 16, left + warp_n * 64, images.pixels, channels_out, 0}, nullptr, CUtensorMap{});
}

template <int tile_n>
struct ByWgmma {
  static constexpr int threads = 256, stages = tile_n == 128 ? 3 : 4, blocks = tile_n == 256 ? 1 : 2;
  static constexpr std::size_t shared_bytes = stages * stage_bytes<tile_n>;
};

// Two warpgroups, which gather together and multiply 64 pixels each with all columns of the tile.
template <int tile_n, class By = ByWgmma<tile_n>>
__global__ __launch_bounds__(By::threads, By::blocks) void implicit_wgmma_kernel(const bf16* x, const bf16* w,
                                                                                 const gemm::RowsStore<bf16> y,
                                                                                 const Images images, int channels_out) {
  constexpr int stages = By::stages, bytes = stage_bytes<tile_n>;
  extern __shared__ __align__(1024) unsigned char memory[];
  const int t = threadIdx.x, warpgroup = t / 128;
  const int top = first_pixel<tile_n>(channels_out), left = first_column<tile_n>(channels_out);
  Gather<tile_n, By::threads> gather{x, w, images, top, left};

  // Two products may be under way, of this tile and of the one before; the slots of the two after it are filled meanwhile.
  constexpr int ahead = stages - 2;
  const int tiles = taps * images.channels / step_channels;
  for (int tile = 0; tile < ahead; ++tile) {
    gather.copy_next(memory + tile * bytes);
    device::commit_copies();
  }
  const std::uint64_t a_first = device::operand(memory + warpgroup * 64 * row_bytes), b_first = device::operand(memory + a_bytes);
  float sums[tile_n / 2];
  int slot = 0, writing = ahead;
  for (int tile = 0; tile < tiles; ++tile) {
    device::wait_copies<ahead - 1>();
    device::fence_proxy_async_shared();
    __syncthreads();  // this tile has come, and both warpgroups are done with the one two before it
    if (tile + ahead < tiles) gather.copy_next(memory + writing * bytes);
    device::commit_copies();  // also where there was nothing left to copy: waiting counts groups
    device::wgmma_touch(sums);
    device::wgmma_fence();
#pragma unroll
    for (int step = 0; step < step_channels / 16; ++step)
      device::wgmma<device::Operands::bf16>(sums, device::advance(a_first, slot * bytes + step * 32),
                                            device::advance(b_first, slot * bytes + step * 32), tile > 0 || step > 0);
    device::wgmma_commit();
    device::wgmma_wait<1>();
    slot = (slot + 1) % stages;
    writing = (writing + 1) % stages;
  }
  device::wgmma_wait<0>();
  device::wgmma_touch(sums);
  y.put(sums, {top + warpgroup * 64 + t % 128 / 32 * 16, left, images.pixels, channels_out, 0}, nullptr, CUtensorMap{});
}

// Narrow tiles are higher, so that they load as little for each product.
using Operand = gemm::Operand<bf16>;
template <int tile_n>
using Cooperative =
    gemm::Config<Operand, Operand, gemm::InTensorCores,
                 gemm::Shape{
                     .tile_m = tile_n == 256 ? 128 : 256, .tile_n = tile_n, .stages = tile_n == 64 ? 5 : 4, .cluster = 2}>;
template <class Config, class Schedule>
using Engine = gemm::Gemm<Config, Schedule, gemm::Identity, gemm::RowsStore<bf16>>;

class ImplicitGemmConv final : public Workload {
 public:
  // Weights of a size that the outputs have a variance near one.
  explicit ImplicitGemmConv(Setup& setup)
      : shape_{.images = setup.size("images"),
               .height = setup.size("height"),
               .width = setup.size("width"),
               .channels_in = setup.size("channels_in"),
               .channels_out = setup.size("channels_out"),
               .filter = filter},
        pixels_{countable(shape_.images * shape_.height * shape_.width)},
        k_{taps * shape_.channels_in},
        x_{setup.input<bf16>(pixels_ * shape_.channels_in, uniform(-1, 1), {.name = "images"})},
        w_{setup.input<bf16>(shape_.channels_out * k_, uniform(-largest_weight(), largest_weight()), {.name = "filter"})},
        unfolded_{setup.scratch<bf16>(pixels_ * k_, {.name = "unfolded"})},
        y_{setup.output<bf16>(pixels_ * shape_.channels_out, {.name = "convolved"})},
        cublaslt_{setup, {.m = pixels_, .n = shape_.channels_out, .k = k_, .b_is_transposed = true}},
        cudnn_{setup, shape_},
        reproducible_{setup.reproducible()} {}

  // Pixels outside the images need not be multiplied: 3 n - 2 taps in all along n pixels.
  Cost cost() const override {
    const auto taps_inside = static_cast<double>(shape_.images * (filter * shape_.height - 2) * (filter * shape_.width - 2));
    return {.flops = 2 * taps_inside * static_cast<double>(shape_.channels_in * shape_.channels_out),
            .math = Math::bf16,
            .bytes = static_cast<double>(x_.bytes() + w_.bytes() + y_.bytes())};
  }
  double expected(std::size_t index) const override {
    const std::size_t pixel = index / shape_.channels_out, out = index % shape_.channels_out;
    const std::size_t column = pixel % shape_.width, line = pixel / shape_.width % shape_.height;
    double sum = 0;
    for (std::size_t tap = 0; tap < taps; ++tap) {
      const std::size_t down = line + tap / filter, right = column + tap % filter;  // one more than where the tap lies
      if (down < 1 || down > shape_.height || right < 1 || right > shape_.width) continue;
      const std::size_t of_x = (pixel + tap / filter * shape_.width + tap % filter - shape_.width - 1) * shape_.channels_in;
      const std::size_t of_w = out * k_ + tap * shape_.channels_in;
      for (std::size_t c = 0; c < shape_.channels_in; ++c) sum += x_.host(of_x + c) * w_.host(of_w + c);
    }
    return sum;
  }

  void metrics(std::string_view, Metrics& metrics) override {
    metrics.report_rate("images_per_second", static_cast<double>(shape_.images), "images/s");
  }
  // On values like those of the runs: what a product takes depends on them, too.
  void tune_gemm(Launch& launch) {
    unfold(launch);
    if (!reproducible_) cublaslt_.tune(launch, unfolded_, w_, y_);
  }
  void im2col_then_gemm(Launch& launch) {
    unfold(launch);
    cublaslt_.run_tuned(launch, unfolded_, w_, y_);
  }
  void implicit_mma(Launch& launch) {
    // The widest tiles need more shared memory than GPUs other than Hopper and later data center ones have.
    const bool narrow = shape_.channels_out % 128 != 0;
    if (narrow) gather<ByMma<64>, 64>(launch, implicit_mma_kernel<64>);
    else gather<ByMma<128>, 128>(launch, implicit_mma_kernel<128>);
  }
  void implicit_wgmma(Launch& launch) {
    with_tile([&](auto tile_n) { gather<ByWgmma<tile_n>, tile_n>(launch, implicit_wgmma_kernel<tile_n>); });
  }
  void describe_windows(Launch&) {
    with_tile([&](auto tile_n) { windows_ = engine<Cooperative<tile_n>>(x_, windows()); });
  }
  void implicit_wgmma_tma(Launch& launch) { windows_(launch.stream); }

  void describe_unfolded(Launch&) {
    with_tile([&](auto tile_n) { of_unfolded_ = engine<Cooperative<tile_n>>(unfolded_, gemm::Bands{}); });
  }
  void engine_on_unfolded(Launch& launch) {
    unfold(launch);
    of_unfolded_(launch.stream);
  }
  void gemm_alone(Launch& launch) { cublaslt_.run_tuned(launch, unfolded_, w_, y_); }

  void tune_cudnn(Launch& launch) {
    if (reproducible_) throw Unsupported{not_reproducible};
    cudnn_->tune(launch.stream, x_, w_, y_);
  }
  void cudnn_convolution(Launch& launch) { cudnn_->run(launch.stream, x_, w_, y_); }

 private:
  using Run = std::function<void(cudaStream_t)>;
  static constexpr std::size_t most_pixels = std::size_t{1} << 26;

  // Rows of tiles are counted in 32 bits, and lines of one pixel take boxes of 16.
  static std::size_t countable(std::size_t pixels) {
    if (pixels > most_pixels)
      throw Unsupported{std::to_string(pixels) + " pixels are more than the " + std::to_string(most_pixels) +
                        " that the kernels count; take fewer or smaller images"};
    return pixels;
  }
  float largest_weight() const { return 3 / std::sqrt(static_cast<float>(k_)); }
  Images images() const {
    return {static_cast<int>(shape_.height), static_cast<int>(shape_.width), static_cast<int>(shape_.channels_in),
            static_cast<int>(pixels_)};
  }

  void unfold(Launch& launch) const {
    const std::size_t packets = pixels_ * shape_.channels_in / packet;
    launch(im2col_kernel, {static_cast<unsigned>((packets + 255) / 256), 256}, reinterpret_cast<const uint4*>(x_.get()),
           reinterpret_cast<uint4*>(unfolded_.get()), images());
  }
  // The widest tiles that the output channels fill.
  template <class Use>
  void with_tile(const Use& use) const {
    if (shape_.channels_out % 256 == 0) use(std::integral_constant<int, 256>{});
    else if (shape_.channels_out % 128 == 0) use(std::integral_constant<int, 128>{});
    else use(std::integral_constant<int, 64>{});
  }
  template <class By, int tile_n, class Kernel>
  void gather(Launch& launch, Kernel kernel) const {
    const std::size_t tiles = (pixels_ + tile_m - 1) / tile_m * (shape_.channels_out / tile_n);
    launch(kernel, {static_cast<unsigned>(tiles), By::threads, By::shared_bytes}, x_, w_, gemm::RowsStore<bf16>{y_}, images(),
           shape_.channels_out);
  }
  gemm::Windows windows() const {
    return {.height = static_cast<int>(shape_.height),
            .width = static_cast<int>(shape_.width),
            .channels = static_cast<int>(shape_.channels_in),
            .filter = filter};
  }
  template <class Config, class Schedule>
  Run engine(const bf16* a, const Schedule& schedule) const {
    const Engine<Config, Schedule> made{{.a = a, .b = w_, .c = y_, .m = pixels_, .n = shape_.channels_out, .k = k_}, schedule};
    return [made](cudaStream_t stream) { made.run(stream); };
  }

  CudnnConvolution::Shape shape_;
  std::size_t pixels_, k_;
  Input<bf16> x_, w_;
  Scratch<bf16> unfolded_;
  Output<bf16> y_;
  LibraryMatmul cublaslt_;
  Opened<CudnnConvolution> cudnn_;
  bool reproducible_;
  Run windows_, of_unfolded_;
};

constexpr Needs by_cublaslt{.libraries = {Library::cublaslt}};
constexpr Needs by_engine = Engine<Cooperative<64>, gemm::Windows>::needs();
constexpr KernelLimits no_spills{.local_bytes = 0};

}  // namespace

extern constinit const Pair implicit_gemm_conv{
    .teaches =
        "a convolution is a product whose left matrix need not exist: its nine shifted views are loaded straight into tiles",
    .lesson = "implicit_wgmma_tma",
    .make = make<ImplicitGemmConv>,
    .baseline = {.name = "im2col_then_gemm",
                 .run = call<&ImplicitGemmConv::im2col_then_gemm>,
                 .prepare = call<&ImplicitGemmConv::tune_gemm>,
                 .needs = by_cublaslt},
    .optimized = variants({{.name = "implicit_mma", .run = call<&ImplicitGemmConv::implicit_mma>, .kernels = no_spills},
                           {.name = "implicit_wgmma",
                            .run = call<&ImplicitGemmConv::implicit_wgmma>,
                            .needs = {.min_sm = 90, .max_sm = 90},
                            .kernels = no_spills},
                           {.name = "implicit_wgmma_tma",
                            .run = call<&ImplicitGemmConv::implicit_wgmma_tma>,
                            .prepare = call<&ImplicitGemmConv::describe_windows>,
                            .needs = by_engine,
                            .same_bits_as = "implicit_wgmma",
                            .kernels = no_spills}}),
    // The engine after the same unfolding as the baseline: our product beside the library's, apart from what this pair is about.
    // And the library's product with nothing before it.
    .controls = variants({{.name = "engine_on_unfolded",
                           .run = call<&ImplicitGemmConv::engine_on_unfolded>,
                           .prepare = call<&ImplicitGemmConv::describe_unfolded>,
                           .needs = by_engine,
                           .same_bits_as = "implicit_wgmma_tma",
                           .kernels = no_spills},
                          {.name = "gemm_alone",
                           .run = call<&ImplicitGemmConv::gemm_alone>,
                           .prepare = call<&ImplicitGemmConv::tune_gemm>,
                           .needs = by_cublaslt,
                           .outputs = no_outputs}}),
    .libraries = variants({{.name = "cudnn_convolution",
                            .run = call<&ImplicitGemmConv::cudnn_convolution>,
                            .prepare = call<&ImplicitGemmConv::tune_cudnn>,
                            .needs = {.libraries = {Library::cudnn}}}}),
    .bound = Bound::compute,
    // One rounding to bf16 is 1.6e-3. Sums of up to 4608 products in the tensor cores' fp32 add less than a tenth of it; a
    // library that splits them may round its parts, too, which makes two roundings, 2.3e-3. Of the samples every tenth pixel or
    // so lies at a border; small images, of which corners are a large part, are compared in full.
    .tolerance = within(4e-3),
    .sizes = sizes({{.name = "images", .full = 32, .most = 4096},
                    {.name = "height", .full = 64, .most = 1024, .scales = false},
                    {.name = "width", .full = 64, .most = 1024, .scales = false},
                    {.name = "channels_in", .full = 256, .multiple = step_channels, .most = 4096, .scales = false},
                    {.name = "channels_out", .full = 256, .multiple = 64, .most = 4096, .scales = false}}),
    // Unfolding moves as many bytes for each pixel and input channel, whatever is made of them: its share falls as 1 / channels.
    .sweep = cases({{"channels_64", "images=512,channels_in=64,channels_out=64"},
                    {"channels_128", "images=128,channels_in=128,channels_out=128"},
                    {"channels_256", "images=32,channels_in=256,channels_out=256"},
                    {"channels_512", "images=8,channels_in=512,channels_out=512"}}),
    .edges = cases({{"one_pixel", "images=1,height=1,width=1,channels_in=64,channels_out=64"},
                    {"one_line", "images=3,height=1,width=70,channels_in=64,channels_out=128"},
                    {"one_column", "images=2,height=37,width=1,channels_in=128,channels_out=256"},
                    {"borders_everywhere", "images=37,height=2,width=3,channels_in=64,channels_out=320"},
                    {"odd_height", "images=3,height=9,width=64,channels_in=128,channels_out=512"},
                    {"no_multiple_of_a_box", "images=5,height=13,width=29,channels_in=192,channels_out=256"},
                    {"wide_line", "images=1,height=3,width=200,channels_in=64,channels_out=192"}}),
};

}  // namespace aisp::ch09
