#include "core/tensor_io.h"

#include <ATen/ops/from_blob.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <unordered_map>

namespace molt {

std::vector<TensorLocation> locateParameters(
    const std::vector<UnitDescription>& units, const std::vector<TensorLocation>& tensors) {
  std::unordered_map<std::string, const TensorLocation*> byName;
  for (const auto& tensor : tensors) byName[tensor.name] = &tensor;
  std::vector<TensorLocation> located;
  for (const auto& unit : units) {
    for (const auto& parameter : unit.allParameters()) {
      if (parameter.role == "value") continue;
      const auto found = byName.find(parameter.name);
      TORCH_CHECK(
          found != byName.end(), "tensor '", parameter.name, "' of shape ", at::IntArrayRef(parameter.shape),
          " is not among the ", tensors.size(), " tensors of the checkpoint: is it of another model?");
      const auto& tensor = *found->second;
      TORCH_CHECK(
          tensor.shape == parameter.shape, tensor.file, ": tensor '", tensor.name, "' has shape ",
          at::IntArrayRef(tensor.shape), ", but the model's config wants ", at::IntArrayRef(parameter.shape));
      located.push_back(tensor);
    }
  }
  return located;
}

at::Tensor mapTensor(const TensorLocation& location) {
  int64_t bytes = static_cast<int64_t>(at::elementSize(location.dtype));
  for (const int64_t size : location.shape) bytes *= size;
  const int file = open(location.file.c_str(), O_RDONLY | O_CLOEXEC);
  TORCH_CHECK(file >= 0, location.file, ": ", std::strerror(errno));
  struct stat status {};
  const bool whole = fstat(file, &status) == 0 && location.offset + bytes <= status.st_size;
  // Maps begin at page boundaries.
  const int64_t start = location.offset / sysconf(_SC_PAGESIZE) * sysconf(_SC_PAGESIZE);
  const size_t length = static_cast<size_t>(std::max<int64_t>(location.offset + bytes - start, 1));
  void* map = whole ? mmap(nullptr, length, PROT_READ, MAP_PRIVATE, file, start) : MAP_FAILED;
  close(file);
  TORCH_CHECK(
      whole, location.file, ": cut off: tensor '", location.name, "' ends at byte ", location.offset + bytes,
      ", the file at ", status.st_size);
  TORCH_CHECK(map != MAP_FAILED, location.file, ": cannot be mapped: ", std::strerror(errno));
  return at::from_blob(
      static_cast<char*>(map) + (location.offset - start), location.shape,
      [map, length](void*) { munmap(map, length); }, at::TensorOptions(location.dtype));
}

namespace {

constexpr uint64_t kOffset = 0xcbf29ce484222325ULL;

// FNV-1a over words, with a shift that carries high bits back into low ones.
inline uint64_t mix(uint64_t state, uint64_t word) {
  state = (state ^ word) * 0x100000001b3ULL;
  return state ^ (state >> 32);
}

}  // namespace

uint64_t hashOf(const at::Tensor& values) {
  const auto contiguous = values.cpu().contiguous();
  const float* data = contiguous.const_data_ptr<float>();
  // Lanes do not wait for each other: as fast as memory.
  constexpr int64_t kLanes = 8, kStep = kLanes * sizeof(uint64_t) / sizeof(float);
  uint64_t lanes[kLanes], words[kLanes];
  for (int64_t j = 0; j < kLanes; ++j) lanes[j] = mix(kOffset, j);
  const int64_t even = contiguous.numel() / kStep * kStep;
  for (int64_t i = 0; i < even; i += kStep) {
    std::memcpy(words, data + i, sizeof words);
    for (int64_t j = 0; j < kLanes; ++j) lanes[j] = mix(lanes[j], words[j]);
  }
  uint64_t state = kOffset;
  for (const uint64_t lane : lanes) state = mix(state, lane);
  for (int64_t i = even; i < contiguous.numel(); ++i) state = mix(state, std::bit_cast<uint32_t>(data[i]));
  return state;
}

void Checksum::update(uint64_t hash) {
  state_ = mix(state_, hash);
}

std::string Checksum::hexadecimal() const {
  char text[17];
  std::snprintf(text, sizeof text, "%016" PRIx64, state_);
  return text;
}

FileWriter::FileWriter(std::string path)
    : path_(std::move(path)), file_(open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644)) {
  TORCH_CHECK(file_ >= 0, path_, ": cannot be written: ", std::strerror(errno));
}

FileWriter::~FileWriter() {
  if (file_ >= 0) ::close(file_);
}

void FileWriter::write(const void* data, size_t bytes) {
  const char* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = ::write(file_, next, bytes);
    if (written < 0 && errno == EINTR) continue;
    TORCH_CHECK(written > 0, path_, ": cannot be written: ", std::strerror(errno));
    next += written;
    bytes -= static_cast<size_t>(written);
  }
}

void FileWriter::write(const at::Tensor& values) {
  const auto contiguous = values.cpu().contiguous();
  write(contiguous.const_data_ptr(), contiguous.nbytes());
}

void FileWriter::close() {
  const int file = std::exchange(file_, -1);
  const bool synced = fsync(file) == 0;
  const int cause = errno;
  const bool closed = ::close(file) == 0;
  TORCH_CHECK(synced && closed, path_, ": cannot be written: ", std::strerror(synced ? errno : cause));
}

}  // namespace molt
