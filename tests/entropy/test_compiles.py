"""The kernels compile for an H100 or H200, on any machine: Triton's interpreter takes what its compiler refuses."""

import os

import pytest

triton = pytest.importorskip("triton", reason="Triton is not installed")
kernels = pytest.importorskip("gtpo_verl.entropy._kernels")
pytestmark = pytest.mark.skipif(kernels.INTERPRETED, reason="an interpreted kernel is not compiled")

SIZES = {"bf16": 2, "fp16": 2, "fp32": 4}
INTEGERS = ("V", "first_label", "inner", "shift")


@pytest.fixture
def compiled(tmp_path, monkeypatch):
    """PTX of a kernel for compute capability 9.0; pointers without a type here are fp32."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    monkeypatch.setattr(triton.knobs.cache, "dir", os.fspath(tmp_path))

    def ptx(kernel, constants, types=(), aligned=(), warps=8, stages=3):
        types = {"label_ptr": "*i64", "inverse_temperature": "fp32", **dict(types)}
        signature = {}
        for name in kernel.arg_names:
            whole = "stride" in name or name in INTEGERS
            default = "i32" if whole else "*fp32" if name.endswith("_ptr") else "?"
            signature[name] = "constexpr" if name in constants else types.get(name, default)
        at = {name: (i,) for i, name in enumerate(kernel.arg_names)}
        source = ASTSource(
            kernel,
            signature,
            {at[name]: value for name, value in constants.items()},
            {at[name]: [["tt.divisibility", 16]] for name in aligned},
        )
        options = {"num_warps": warps, "num_stages": stages}
        return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options).asm["ptx"]

    return ptx


@pytest.mark.parametrize("dtype", SIZES)
@pytest.mark.parametrize("unit", [True, False])
@pytest.mark.parametrize("partial", [True, False])  # beside it: edges, a temperature per row
def test_the_pass(compiled, dtype, unit, partial):
    lanes, width, warps = kernels._forward_shape(50257, SIZES[dtype])
    constants = {"PER_ROW": not partial, "PARTIAL": partial, "UNIT": unit, "EDGES": unit or partial, "FAST": True}
    constants |= {"LANES": lanes, "WIDTH": width} | ({"stride_v": 1} if unit else {})
    ptx = compiled(kernels._statistics_kernel, constants, {"x_ptr": f"*{dtype}"}, aligned=["x_ptr"], warps=warps)
    assert ("ld.global.v4.b32" in ptx) == unit  # 16 bytes at a time, wherever a row starts


@pytest.mark.parametrize("dtype", SIZES)
@pytest.mark.parametrize(("unit", "aligned"), [(True, True), (True, False), (False, True)])
def test_the_gradient(compiled, dtype, unit, aligned):
    width = 16 // SIZES[dtype] if aligned else 1
    constants = {"PER_ROW": not aligned, "UNIT": unit, "EDGES": aligned, "FAST": True, "WIDTH": width}
    constants |= {"LANES": kernels.BACKWARD_BLOCK // width} | ({"stride_v": 1, "out_stride_v": 1} if unit else {})
    types = {"x_ptr": f"*{dtype}", "out_ptr": f"*{dtype}"}
    ptx = compiled(
        kernels._gradient_kernel, constants, types, aligned=["x_ptr", "out_ptr"], warps=kernels.BACKWARD_WARPS
    )
    assert ("ld.global.v4.b32" in ptx and "st.global.v4.b32" in ptx) == (unit and aligned)


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("plain", [True, False])  # beside it: columns that fill no tile, a temperature per row
def test_the_matmul_that_writes_no_logits(compiled, dtype, plain):
    fused = pytest.importorskip("gtpo_verl.entropy._fused")
    bm, bn, bk, group, stages = fused.SHAPE
    constants = {"BM": bm, "BN": bn, "BK": bk, "GROUP": group, "PROGRAMS": 132, "FLAT": True, "FAST": True}
    integers = dict.fromkeys(("M", "V", "K", "first_tile", "tiles", "tiles_n"), "i32")
    types = integers | {"hidden": f"tensordesc<{dtype}[{bm}, {bk}]>", "weight": f"tensordesc<{dtype}[{bn}, {bk}]>"}
    ptx = compiled(
        fused._tiles_kernel,
        constants | {"EVEN": plain, "PER_ROW": not plain},
        types,
        aligned=["part_ptr", "K"],
        warps=fused.WARPS,
        stages=stages,
    )
    # The next product starts while one is under way, and a tile's statistics are taken while the next tile is loaded.
    assert "wgmma.wait_group.sync.aligned \t1" in ptx or "wgmma.wait_group.sync.aligned 1" in ptx
    assert "cp.async.bulk.tensor" in ptx
    compiled(fused._merge_kernel, {"PER_ROW": not plain, "ROWS": 64, "TILES": 16}, types, aligned=["part_ptr"], warps=4)


def test_a_vocabulary_of_one_tile(compiled):
    """Triton makes a constant of a number that is 1, which has not all that a number of the GPU has."""
    fused = pytest.importorskip("gtpo_verl.entropy._fused")
    constants = {"PER_ROW": False, "ROWS": 64, "TILES": 16, "tiles_n": 1}
    compiled(fused._merge_kernel, constants, {"M": "i32"}, aligned=["part_ptr"], warps=4)
    bm, bn, bk, group, stages = fused.SHAPE
    types = {"hidden": f"tensordesc<bf16[{bm}, {bk}]>", "weight": f"tensordesc<bf16[{bn}, {bk}]>"}
    types |= dict.fromkeys(("M", "K", "first_tile", "tiles"), "i32")
    constants = {"BM": bm, "BN": bn, "BK": bk, "GROUP": group, "PROGRAMS": 132, "FLAT": True, "FAST": True, "V": 1}
    constants |= {"EVEN": False, "PER_ROW": False}
    compiled(fused._tiles_kernel, constants, types, aligned=["part_ptr", "K"], warps=fused.WARPS, stages=stages)
