#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/decoder.h"
#include "core/flat.h"
#include "core/mixture.h"
#include "core/packed.h"
#include "core/process_group.h"
#include "core/tensor_io.h"
#include "core/unit.h"

namespace molt {

/// What backward has of the layers.
enum class Checkpoint { full, selective, none };

/// index.d.ts says what each is.
struct ModelOptions {
  std::shared_ptr<ProcessGroup> group, contextGroup, expertGroup, expertDataGroup;
  bool trainable = false;
  at::ScalarType dtype = at::kFloat;
  int64_t headChunk = 1024;
  Checkpoint checkpoint = Checkpoint::full;
  bool reshardAfterForward = true;
  bool deferReduce = false;
  bool freezeRouter = false;
};

/// A decoder whose units are float32 shards over a group, computed in a dtype of its own. All methods run on the native
/// thread; those marked collective must be called by every rank of the group in the same order.
class Model {
 public:
  Model(DecoderConfig config, std::vector<UnitDescription> units, ModelOptions options);

  /// Each parameter has its own generator, so weights depend on neither sharding nor order. The adapters are a call of
  /// their own.
  void initialize(uint64_t seed, bool adaptersOnly);
  /// A value head keeps what it has.
  void load(const std::vector<TensorLocation>& tensors);
  /// What the adapters were laid on, not trainable; the two share one copy.
  std::shared_ptr<Model> base() const;

  struct Scores {
    at::Tensor logp;     // [T], zeros where no target was
    at::Tensor entropy;  // [T]
    RouteTotals routes;
  };
  /// With `grad`, the graph reaches every unit even where no position has a target. Collective.
  Scores forward(const PackedRows& rows, bool grad);
  /// [T], of a model with a value head: zeros where no target was. Collective.
  at::Tensor values(const PackedRows& rows, bool grad);
  /// Adds the gradient of a scalar to the shards; the last sums over ranks are still under way. Collective.
  void backward(const at::Tensor& loss);

  void zeroGradients();
  /// Ends the sums over ranks that backward began or deferred, as all below that read gradients do. Collective.
  void reduceGradients() const;
  /// Collective.
  double gradientNorm() const;
  /// Names of the parameters with a NaN or infinity on any rank. Collective.
  std::vector<std::string> nonFiniteGradients() const;
  /// One whole parameter, its adapters' product added, or an adapter's own; a copy. Collective.
  at::Tensor read(const std::string& name) const;
  at::Tensor readGradient(const std::string& name) const;
  void writeGradient(const std::string& name, const at::Tensor& value);

  /// Rank 0 writes the header and every parameter in the order of the units; or the adapters' alone. Collective.
  void save(const std::string& path, const std::vector<uint8_t>& header, bool adaptersOnly) const;
  /// Rank 0 sends every parameter, in the order of the units, as root of `transfer` (null elsewhere), and gives the
  /// checksum of what it sent. Collective.
  std::string broadcast(
      const std::shared_ptr<ProcessGroup>& transfer, at::ScalarType dtype, int64_t bucketBytes) const;
  /// Of every parameter in the order of the units; padding does not count. Collective.
  std::string checksum() const;

  /// Float32 values that this rank trains, all units.
  int64_t shardSize() const;
  /// What an optimizer steps: the units' shards, or of those with adapters these.
  const Shards& trained() const { return trained_; }

 private:
  /// Where a parameter is.
  struct Place {
    const ParameterDescription* parameter;
    FlatShard* shard;  // the unit's that has it, if on another rank of the expert group
    const Slot* slot;  // null where another has it
    int owner;         // rank of that group; -1 where all have it
  };
  /// In the order of the units, the same on every rank; or of what is trained.
  std::vector<Place> places(bool trained) const;
  Place find(const std::string& name, bool trained) const;
  /// Of a parameter of an expert, where they are shared out; else -1.
  int ownerOf(const ParameterDescription& parameter) const;
  bool has(const ParameterDescription& parameter) const;
  /// The whole parameter on every rank; flat: of its shard, gathered. Collective.
  at::Tensor whole(const Place& place, const at::Tensor& flat) const;
  int rank() const { return options_.group ? options_.group->rank() : 0; }
  /// What the unit at `index` gathers; none past the ends.
  Shards shardsOf(size_t index) const;
  UnitOptions unitOptions(size_t index, bool grad) const;
  /// What the head gives, [T, columns].
  at::Tensor run(const PackedRows& rows, bool grad, RouteTotals& routes) const;
  at::Tensor runLayers(const SortedRows& rows, bool grad, RouteTotals& routes) const;
  at::Tensor runHead(const SortedRows& rows, const at::Tensor& hidden, bool grad) const;
  /// Calls visit(parameter, whole value) in the order of the units. Collective.
  template <typename Visit>
  void forEachParameter(bool trained, Visit visit) const;

  const DecoderConfig config_;
  const std::vector<UnitDescription> units_;
  ModelOptions options_;
  const bool hasValues_;  // the head gives one number a position
  std::vector<Shards> unitShards_;
  Shards trained_;
};

}  // namespace molt
