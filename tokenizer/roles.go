package tokenizer

// Files name some tokens with a role by id and leave others to be known by their text. The lists are those that
// llama.cpp goes by, so that the same ids stop a generation.

// endTexts end the generation wherever they are in a vocabulary, and are control tokens whatever the file says.
var endTexts = []string{
	"<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "<end_of_turn>",
	"<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>", "<end_of_utterance>",
	"<eos>", "<turn|>", "<|tool_response>", "<｜end▁of▁sentence｜>", "[e~[",
}

// roleTexts lists, for each role, the texts it is known by; the first one in the vocabulary takes it.
var roleTexts = []struct {
	role  string
	texts []string
}{
	{"eot", []string{"<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>", "<EOT>", "_<EOT>",
		"[EOT]", "<｜end▁of▁sentence｜>", "<end_of_utterance>"}},
	{"eom", []string{"<|eom_id|>"}},
	{"fim_pre", []string{"<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<｜fim▁begin｜>", "<PRE>", "▁<PRE>", "<|code_prefix|>", "<|prefix|>"}},
	{"fim_suf", []string{"<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<｜fim▁hole｜>", "<SUF>", "▁<SUF>", "<|code_suffix|>", "<|suffix|>"}},
	{"fim_mid", []string{"<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<｜fim▁end｜>", "<MID>", "▁<MID>", "<|code_middle|>", "<|middle|>"}},
	{"fim_pad", []string{"<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"}},
	{"fim_rep", []string{"<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"}},
	{"fim_sep", []string{"<|file_sep|>"}},
}

// assignRoles finds the special ids and the end-of-generation set, and corrects the kinds of tokens that files often have
// wrong. It returns the id of the unknown token, -1 if there is none.
func (t *Tokenizer) assignRoles(f *fields) int32 {
	id := map[string]int32{}
	for role, v := range f.ids {
		if v < 0 || v >= int64(t.text.len()) {
			t.warn("%s%s_token_id is %d, outside the vocabulary of %d: ignored", keyPrefix, role, v, t.text.len())
			continue
		}
		id[role] = int32(v)
	}
	for role, d := range map[string]int32{"bos": f.model.bos, "eos": f.model.eos, "unknown": f.model.unknown} {
		// The default is right for few files. One that lands on an ordinary token would stop every answer at, say, a
		// comma, so it only counts where it is a control token, or where the file has no kinds at all.
		if _, ok := id[role]; !ok && (t.IsControl(d) || f.model.scored && f.types == nil && t.known(d)) {
			id[role] = d
		}
	}
	if f.pre.noBOS {
		if _, said := f.ids["bos"]; !said {
			delete(id, "bos")
		}
	}
	for _, r := range roleTexts {
		if _, ok := id[r.role]; ok {
			continue
		}
		for _, s := range r.texts {
			if k, ok := t.Lookup(s); ok {
				id[r.role] = k
				t.makeControl(k)
				break
			}
		}
	}
	for _, role := range []string{"eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep"} {
		if k, ok := id[role]; ok {
			t.eog[k] = true
		}
	}
	for _, s := range endTexts {
		if k, ok := t.Lookup(s); ok {
			t.eog[k] = true
			t.makeControl(k)
		}
	}
	t.correctEOG(f)
	if len(t.eog) == 0 {
		t.warn("the vocabulary has no token that ends a generation")
	}

	role := func(name string) int32 {
		if k, ok := id[name]; ok {
			return k
		}
		return -1
	}
	t.bos, t.eos, t.eot = role("bos"), role("eos"), role("eot")
	t.fim = FIM{role("fim_pre"), role("fim_suf"), role("fim_mid"), role("fim_rep"), role("fim_sep")}
	t.addBOS = f.pre.addBOS
	if f.addBOS != nil {
		t.addBOS = *f.addBOS
	}
	if f.pre.forceBOS && !t.addBOS {
		if f.addBOS != nil {
			t.warn("%sadd_bos_token is false, but this family needs its beginning token: it is added", keyPrefix)
		}
		t.addBOS = true
	}
	t.addEOS = f.addEOS != nil && *f.addEOS
	if t.addBOS && t.bos < 0 {
		t.warn("%sadd_bos_token is true, by the file or its family, but there is no beginning token: none is added", keyPrefix)
		t.addBOS = false
	}
	if t.addEOS && t.eos < 0 {
		t.warn("%sadd_eos_token is true, but the file has no end token: none is added", keyPrefix)
		t.addEOS = false
	}
	return role("unknown")
}

// correctEOG takes out what ends a generation by its text in most vocabularies but not in this one.
func (t *Tokenizer) correctEOG(f *fields) {
	ends := func(s string) bool {
		id, ok := t.Lookup(s)
		return ok && t.eog[id]
	}
	harmony := ends("<|return|>") && ends("<|call|>")
	solar := ends("<|calls|>") && ends("<|flush|>")
	if end, ok := t.Lookup("<|end|>"); ok && (harmony || solar) {
		// It separates channels here; whoever reads the output needs to see it, and the other marks of a message.
		delete(t.eog, end)
		t.makeVisible(end)
		for _, s := range []string{"<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"} {
			if id, ok := t.Lookup(s); ok {
				t.makeVisible(id)
			}
		}
	}
	if ends("<|tool_response>") {
		if id, ok := t.Lookup("</s>"); ok && id != t.eos {
			// It closes struck-out text in this vocabulary: an ordinary token.
			delete(t.eog, id)
			t.kind[id] = kindNormal
		}
	}
	if f.pre.glm {
		for _, s := range []string{"<|user|>", "<|observation|>"} {
			if id, ok := t.Lookup(s); ok {
				t.eog[id] = true
			}
		}
	}
}

// makeControl makes id a control token; files have been seen that list these as ordinary ones.
func (t *Tokenizer) makeControl(id int32) { t.kind[id] = kindControl | guarded }

// makeVisible makes id user-defined, so that it has text in the output. It stays guarded.
func (t *Tokenizer) makeVisible(id int32) { t.kind[id] = t.kind[id]&guarded | kindUserDefined }
