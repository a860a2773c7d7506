package grammar

import (
	"fmt"
	"math/big"
	"strings"
)

// maxDigits is the number of digits that numbers have at most where nothing else is asked for: so many a float64 holds.
const maxDigits = 15

func digits(least, most int) *node { return repeat(chars(digitSet), least, most) }

func digitRange(lo, hi byte) *node { return chars(newSet(runeRange{rune(lo), rune(hi)})) }

// bound is an end of a range; nil: there is none.
type bound struct {
	at   *big.Rat
	open bool // the number itself is outside
}

// numbers is what a schema asks of numbers.
type numbers struct {
	lo, hi *bound
	whole  bool       // integers only
	steps  []*big.Rat // multipleOf
}

func (n *numbers) raise(b *bound) {
	if n.lo == nil || b.at.Cmp(n.lo.at) > 0 || b.at.Cmp(n.lo.at) == 0 && b.open {
		n.lo = b
	}
}

func (n *numbers) lower(b *bound) {
	if n.hi == nil || b.at.Cmp(n.hi.at) < 0 || b.at.Cmp(n.hi.at) == 0 && b.open {
		n.hi = b
	}
}

// has tells whether x is in the range.
func (n *numbers) has(x *big.Rat) bool {
	if n.whole && !x.IsInt() {
		return false
	}
	if n.lo != nil {
		if c := x.Cmp(n.lo.at); c < 0 || c == 0 && n.lo.open {
			return false
		}
	}
	if n.hi != nil {
		if c := x.Cmp(n.hi.at); c > 0 || c == 0 && n.hi.open {
			return false
		}
	}
	for _, s := range n.steps {
		if !new(big.Rat).Quo(x, s).IsInt() {
			return false
		}
	}
	return true
}

// node is the numbers as text. Rules for multiples go into b.
func (n *numbers) node(b *builder) (*node, error) {
	places := -1 // digits behind the point
	whole := n.whole
	step := big.NewInt(1)
	for _, s := range n.steps {
		if s.Num().Cmp(big.NewInt(1)) == 0 {
			if k, ok := powerOfTen(s.Denom()); ok && !whole && len(n.steps) == 1 {
				places = k // hundredths and the like
				continue
			}
		}
		// Multiples of p/q that are integers are multiples of p, for p/q in lowest terms.
		whole = true
		p := s.Num()
		g := new(big.Int).GCD(nil, nil, step, p)
		step.Mul(step, new(big.Int).Div(p, g))
	}
	if places == 0 {
		whole = true
	}
	if whole {
		return n.integers(b, step)
	}
	if n.lo == nil && n.hi == nil {
		minus := opt(text("-"))
		int := alt(text("0"), seq(digitRange('1', '9'), digits(0, maxDigits-1)))
		if places > 0 {
			return seq(minus, int, opt(seq(text("."), digits(1, places)))), nil
		}
		return seq(minus, int, opt(seq(text("."), digits(1, maxDigits))), opt(seq(chars(setOf("eE")), opt(chars(setOf("+-"))), digits(1, 2)))), nil
	}
	return n.decimals(places)
}

func powerOfTen(n *big.Int) (int, bool) {
	s := n.String()
	return len(s) - 1, strings.Trim(s[1:], "0") == "" && s[0] == '1'
}

// integers are the multiples of step within the range.
func (n *numbers) integers(b *builder, step *big.Int) (*node, error) {
	var lo, hi *big.Int
	if n.lo != nil {
		lo = floor(n.lo.at)
		if !n.lo.at.IsInt() || n.lo.open {
			lo.Add(lo, big.NewInt(1))
		}
	}
	if n.hi != nil {
		hi = floor(n.hi.at)
		if n.hi.at.IsInt() && n.hi.open {
			hi.Sub(hi, big.NewInt(1))
		}
	}
	if lo != nil && hi != nil && lo.Cmp(hi) > 0 {
		return never, nil
	}
	if step.Cmp(big.NewInt(1)) > 0 {
		return n.multiples(b, lo, hi, step)
	}
	if lo == nil && hi == nil {
		return alt(text("0"), seq(opt(text("-")), digitRange('1', '9'), digits(0, maxDigits-1))), nil
	}
	far := new(big.Int).Exp(big.NewInt(10), big.NewInt(maxDigits), nil)
	if lo == nil {
		lo = new(big.Int).Neg(outside(far, hi))
	}
	if hi == nil {
		hi = outside(far, lo)
	}
	var all []*node
	if lo.Sign() < 0 {
		top := new(big.Int).Neg(lo)
		bottom := big.NewInt(1)
		if hi.Sign() < 0 {
			bottom = new(big.Int).Neg(hi)
		}
		all = append(all, seq(text("-"), naturals(bottom, top)))
	}
	if hi.Sign() >= 0 {
		from := lo
		if lo.Sign() < 0 {
			from = new(big.Int)
		}
		all = append(all, naturals(from, hi))
	}
	return alt(all...), nil
}

// outside is a large number that is beyond x in size.
func outside(far, x *big.Int) *big.Int {
	a := new(big.Int).Abs(x)
	if a.Mul(a, big.NewInt(10)).Cmp(far) > 0 {
		return a
	}
	return new(big.Int).Sub(far, big.NewInt(1))
}

func floor(r *big.Rat) *big.Int {
	q, m := new(big.Int).DivMod(r.Num(), r.Denom(), new(big.Int)) // Euclidean: m >= 0
	_ = m
	return q
}

// naturals are the numbers from lo to hi, 0 <= lo <= hi, without leading zeros.
func naturals(lo, hi *big.Int) *node {
	a, b := lo.String(), hi.String()
	var all []*node
	for n := len(a); n <= len(b); n++ {
		from, to := "1"+strings.Repeat("0", n-1), strings.Repeat("9", n)
		if n == len(a) {
			from = a
		}
		if n == len(b) {
			to = b
		}
		all = append(all, between(from, to))
	}
	return alt(all...)
}

// between are the digit strings from a to b, which are of one length.
func between(a, b string) *node {
	switch {
	case a == "":
		return empty
	case strings.Trim(a, "0") == "" && strings.Trim(b, "9") == "":
		return digits(len(a), len(a))
	case a[0] == b[0]:
		return seq(text(a[:1]), between(a[1:], b[1:]))
	}
	rest := len(a) - 1
	lo, hi := a[0], b[0]
	var all []*node
	if strings.Trim(a[1:], "0") != "" {
		all = append(all, seq(text(a[:1]), between(a[1:], strings.Repeat("9", rest))))
		lo++
	}
	if strings.Trim(b[1:], "9") != "" {
		all = append(all, seq(text(b[:1]), between(strings.Repeat("0", rest), b[1:])))
		hi--
	}
	if lo <= hi {
		all = append(all, seq(digitRange(lo, hi), digits(rest, rest)))
	}
	return alt(all...)
}

// maxStep is the largest step of multiples that a range without two ends may have.
const maxStep = 200

// multiples writes the multiples out, if there are few, or has a rule for each remainder.
func (n *numbers) multiples(b *builder, lo, hi, step *big.Int) (*node, error) {
	if lo != nil && hi != nil {
		first := new(big.Int).Neg(floor(new(big.Rat).SetFrac(new(big.Int).Neg(lo), step)))
		last := floor(new(big.Rat).SetFrac(hi, step))
		count := new(big.Int).Sub(last, first)
		if count.Sign() < 0 {
			return never, nil
		}
		if count.Cmp(big.NewInt(1000)) < 0 {
			var all []*node
			for ; first.Cmp(last) <= 0; first.Add(first, big.NewInt(1)) {
				all = append(all, text(new(big.Int).Mul(first, step).String()))
			}
			return alt(all...), nil
		}
		return nil, fmt.Errorf("the range holds more than 1000 multiples of %s, and with such a range that is not supported", step)
	}
	if lo != nil && (lo.Sign() > 0 || lo.Sign() < 0) || hi != nil && hi.Sign() != 0 || step.Cmp(big.NewInt(maxStep)) > 0 {
		return nil, fmt.Errorf("multiples of %s with one bound other than 0, or of steps above %d, are not supported", step, maxStep)
	}
	m := int(step.Int64())
	base := len(b.rules)
	// Rule base + left*m + r: at most left more digits, behind digits of remainder r.
	for left := range maxDigits {
		for r := range m {
			var all []*node
			if r == 0 {
				all = append(all, empty)
			}
			for d := range 10 {
				if left > 0 {
					all = append(all, seq(text(fmt.Sprint(d)), &node{kind: kRef, ref: base + (left-1)*m + (r*10+d)%m}))
				}
			}
			b.rules = append(b.rules, rule{fmt.Sprintf("%d modulo %d", r, m), alt(all...)})
		}
	}
	var first []*node
	for d := 1; d < 10; d++ {
		first = append(first, seq(text(fmt.Sprint(d)), &node{kind: kRef, ref: base + (maxDigits-1)*m + d%m}))
	}
	some := alt(first...)
	zero := text("0")
	switch {
	case lo != nil:
		return alt(zero, some), nil
	case hi != nil:
		return alt(zero, seq(text("-"), some)), nil
	}
	return alt(zero, seq(opt(text("-")), some)), nil
}

// decimals are the numbers of the range with a fraction; places < 0: of any length.
func (n *numbers) decimals(places int) (*node, error) {
	if n.lo != nil && n.hi != nil {
		if c := n.lo.at.Cmp(n.hi.at); c > 0 || c == 0 && (n.lo.open || n.hi.open) {
			return never, nil
		}
	}
	var all []*node
	zero := new(big.Rat)
	if n.lo == nil || n.lo.at.Sign() < 0 {
		lo, hi := &bound{zero, true}, (*bound)(nil)
		if n.hi != nil && n.hi.at.Sign() <= 0 {
			lo = &bound{new(big.Rat).Neg(n.hi.at), n.hi.open || n.hi.at.Sign() == 0}
		}
		if n.lo != nil {
			hi = &bound{new(big.Rat).Neg(n.lo.at), n.lo.open}
		}
		part, err := positives(lo, hi, places)
		if err != nil {
			return nil, err
		}
		all = append(all, seq(text("-"), part))
	}
	if n.hi == nil || n.hi.at.Sign() > 0 || n.hi.at.Sign() == 0 && !n.hi.open {
		lo := &bound{zero, false}
		if n.lo != nil && n.lo.at.Sign() >= 0 {
			lo = n.lo
		}
		part, err := positives(lo, n.hi, places)
		if err != nil {
			return nil, err
		}
		all = append(all, part)
	}
	return alt(all...), nil
}

// positives are the numbers from lo to hi, lo >= 0; nil: without end.
func positives(lo, hi *bound, places int) (*node, error) {
	a, fa, err := split(lo.at)
	if err != nil {
		return nil, err
	}
	far := new(big.Int).Exp(big.NewInt(10), big.NewInt(maxDigits), nil)
	b, fb := outside(far, a), ""
	if hi != nil {
		if b, fb, err = split(hi.at); err != nil {
			return nil, err
		}
	}
	size := len(a.String())
	if hi != nil {
		size = len(b.String())
	}
	room := max(maxDigits-size, 1, len(fa), len(fb))
	if places >= 0 {
		room = places
	}
	if (lo.open || hi != nil && hi.open) && max(len(fa), len(fb))+size > maxDigits {
		return nil, fmt.Errorf("a limit that is excluded has more than %d digits", maxDigits)
	}
	low := limit{fa, lo.open, true}
	high := limit{fb, hi != nil && hi.open, true}
	if a.Cmp(b) == 0 {
		return seq(text(a.String()), fraction(low, high, room)), nil
	}
	all := []*node{seq(text(a.String()), fraction(low, limit{}, room)), seq(text(b.String()), fraction(limit{}, high, room))}
	from, to := new(big.Int).Add(a, big.NewInt(1)), new(big.Int).Sub(b, big.NewInt(1))
	if from.Cmp(to) <= 0 {
		all = append(all, seq(naturals(from, to), fraction(limit{}, limit{}, room)))
	}
	return alt(all...), nil
}

// split gives the integer part and the digits behind the point.
func split(r *big.Rat) (*big.Int, string, error) {
	const most = 60
	whole := floor(r)
	places, exact := r.FloatPrec()
	if !exact || places > most || len(whole.String()) > most {
		return nil, "", fmt.Errorf("limit %s has more than %d digits", r.RatString(), most)
	}
	if places == 0 {
		return whole, "", nil
	}
	_, frac, _ := strings.Cut(r.FloatString(places), ".")
	return whole, strings.TrimRight(frac, "0"), nil
}

// limit is an end of a range of fractions.
type limit struct {
	digits string
	open   bool
	set    bool
}

// fraction is a point and digits, at most room of them, or nothing, for a fraction from lo to hi.
func fraction(lo, hi limit, room int) *node {
	some, none := fractionDigits(lo, hi, room)
	out := seq(text("."), some)
	if none {
		return opt2(out)
	}
	return out
}

// opt2 is n or nothing, also if n is never.
func opt2(n *node) *node { return alt(empty, n) }

// fractionDigits are the digits of fractions from lo to hi, without the empty text; none tells whether that, which is zero,
// is in the range too.
func fractionDigits(lo, hi limit, room int) (some *node, none bool) {
	none = !(lo.set && (lo.open || lo.digits != "")) && !(hi.set && hi.open && hi.digits == "")
	if room == 0 {
		return never, none
	}
	if hi.set && hi.digits == "" && hi.open {
		return never, none
	}
	if !hi.set && (!lo.set || lo.digits == "" && !lo.open) {
		return digits(1, room), none
	}
	from, to := byte('0'), byte('9')
	nextLo, nextHi := limit{}, limit{}
	if lo.set {
		if nextLo = (limit{"", lo.open, true}); lo.digits != "" {
			from, nextLo.digits = lo.digits[0], lo.digits[1:]
		}
	}
	if hi.set {
		if to, nextHi = '0', (limit{"", hi.open, true}); hi.digits != "" {
			to, nextHi.digits = hi.digits[0], hi.digits[1:]
		}
	}
	if from > to {
		return never, none
	}
	step := func(d byte, lo, hi limit) *node {
		some, none := fractionDigits(lo, hi, room-1)
		if none {
			some = opt2(some)
		}
		return seq(text(string(d)), some)
	}
	if from == to && lo.set && hi.set {
		return step(from, nextLo, nextHi), none
	}
	var all []*node
	if lo.set {
		all = append(all, step(from, nextLo, limit{}))
		from++
	}
	if hi.set {
		all = append(all, step(to, limit{}, nextHi))
		to--
	}
	if from <= to {
		all = append(all, seq(digitRange(from, to), digits(0, room-1)))
	}
	return alt(all...), none
}
