package kernels

// The paths are seen from _gen.
//
//go:generate go run -C _gen . -pkg kernels -set avx2 -out ../matrix_avx2_amd64.s -stubs ../matrix_avx2_amd64.go
//go:generate go run -C _gen . -pkg kernels -set avx512 -out ../matrix_avx512_amd64.s -stubs ../matrix_avx512_amd64.go
//go:generate go run -C _gen . -pkg kernels -set gemm2 -out ../gemm_avx2_amd64.s -stubs ../gemm_avx2_amd64.go
//go:generate go run -C _gen . -pkg kernels -set gemm512 -out ../gemm_avx512_amd64.s -stubs ../gemm_avx512_amd64.go
//go:generate go run -C _gen . -pkg kernels -set common -out ../common_amd64.s -stubs ../common_amd64.go
//go:generate go run -C _gen ./arm64 -set matrix -out ../matrix_arm64.s -stubs ../matrix_arm64.go
//go:generate go run -C _gen ./arm64 -set common -out ../common_arm64.s -stubs ../common_arm64.go
//go:generate go run -C _gen ./arm64 -set delta -out ../delta_arm64.s -stubs ../delta_arm64.go
//go:generate go run -C _gen . -pkg kernels -set attend -out ../attend_amd64.s -stubs ../attend_amd64.go
//go:generate go run -C _gen . -pkg kernels -set delta -out ../delta_amd64.s -stubs ../delta_amd64.go
//go:generate go run -C _gen . -pkg kernels -set matvec_avx2 -out ../matvec_avx2_amd64.s -stubs ../matvec_avx2_amd64.go
//go:generate go run -C _gen . -pkg kernels -set matvec_avx512 -out ../matvec_avx512_amd64.s -stubs ../matvec_avx512_amd64.go
