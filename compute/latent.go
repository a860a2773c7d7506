package compute

// Part names elements First to First+N-1 of each head of Dim elements of a tensor's rows.
type Part struct{ Dim, First, N int }

// HeadRows says which rows of a weight belong to head h: those from h*Stride+First on, as many as the product needs.
type HeadRows struct{ Stride, First int }

// LatentEncoder has what attention over a compressed cache needs besides Attention. A tensor's row is cut into heads, and
// both tensors of an operation have equally many.
type LatentEncoder interface {
	// HeadMatMul multiplies the part from of each head of x with the head's own rows of w, which have from.N elements, and
	// puts the to.N results into the part to of the same head of dst, of which the rest stays.
	HeadMatMul(dst Tensor, to Part, w Weight, rows HeadRows, x Tensor, from Part)
	// HeadMatMulT is the same with the head's rows transposed: from.N rows of to.N elements are summed up, each multiplied by
	// its element of x. Activations are float32 for every weight type.
	HeadMatMulT(dst Tensor, to Part, w Weight, rows HeadRows, x Tensor, from Part)
	// CopyPart copies the part from of each head of x to the part to of the same head of dst; both have N elements.
	CopyPart(dst Tensor, to Part, x Tensor, from Part)
	// PartNorm is HeadNorm for a part of each head; w has p.N elements.
	PartNorm(x Tensor, p Part, w Weight, eps float32)
}
