import { NF_DROP } from '../../src/kernel/nft/constants.ts'
import type { Element, Expression, Rule, Table, Verdict } from '../../src/kernel/nft/state.ts'
import { CHAIN_NO_LOCAL, dropCounted, GOTO_NO_LOCAL } from '../../src/modes/common/rules.ts'

/** Gives a table as the release before wrote it: what has no endpoint on this node is dropped where it is found. */
export function formerTable(table: Table): Table {
  const chains = [...table.chains].filter(([name]) => name !== CHAIN_NO_LOCAL)
  return {
    ...table,
    chains: new Map(chains.map(([name, chain]) => [name, { ...chain, rules: chain.rules.map(formerRule) }])),
    elements: table.elements.with(
      [...table.elements.entries()].map(([group, elements]) => [group, elements.map(formerElement)]),
    ),
  }
}

function formerRule(rule: Rule): Rule {
  const { expressions } = rule
  return expressions.some(isDrop)
    ? { ...rule, expressions: [...expressions.filter(each => !isDrop(each)), ...dropCounted] }
    : rule
}

function formerElement(element: Element): Element {
  const { data } = element
  const isVerdict = typeof data === 'object' && data.chain === GOTO_NO_LOCAL.chain
  return isVerdict ? { ...element, data: { code: NF_DROP, chain: undefined } satisfies Verdict } : element
}

function isDrop(expression: Expression): boolean {
  return expression.kind === 'verdict' && expression.verdict.chain === GOTO_NO_LOCAL.chain
}
