// What of CodeMirror 6 the live page uses, as one global; `make page` bundles it into roller/server/page/codemirror.js.

import { defaultKeymap, history, historyKeymap, indentWithTab, isolateHistory, redo, undo } from "@codemirror/commands";
import { python } from "@codemirror/lang-python";
import { bracketMatching, indentUnit, syntaxHighlighting } from "@codemirror/language";
import { Annotation, Compartment, EditorState, RangeSet, StateEffect, StateField, Transaction } from "@codemirror/state";
import {
  Decoration, EditorView, GutterMarker, drawSelection, gutter, highlightActiveLine, keymap, lineNumbers,
} from "@codemirror/view";
import { classHighlighter } from "@lezer/highlight";

window.CodeMirror = {
  Annotation, Compartment, Decoration, EditorState, EditorView, GutterMarker, RangeSet, StateEffect, StateField, Transaction,
  bracketMatching, classHighlighter, defaultKeymap, drawSelection, gutter, highlightActiveLine, history, historyKeymap,
  indentUnit, indentWithTab, isolateHistory, keymap, lineNumbers, python, redo, syntaxHighlighting, undo,
};
