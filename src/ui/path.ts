import { fieldOf, listAt, numberAt, textAt } from '../base/plain-data.ts'
import {
  ask,
  element,
  facts,
  NoAnswer,
  numberText,
  replaceChildren,
  svgElement,
  Table,
  type View,
} from './dom.ts'

const PICTURE = {
  class: 'scroll drawing',
  role: 'region',
  'aria-label': 'Picture of the path',
  tabindex: '0',
} as const

/** The path to one Service: a picture, its rules and its endpoints with weights, node and reasons. */
export function servicePath(service: string): View {
  const asked = { from: 'outside', to: '' }
  const { form, targets, client } = connectionForm(asked.from)
  const answer = element('p', { class: 'answer', 'aria-live': 'polite' })
  const picture = element('div', PICTURE)
  const rules = element('ol')
  const more = element('div')
  const endpoints = new Table<unknown>({
    caption: 'Endpoints',
    empty: 'no endpoint',
    columns: ENDPOINT_COLUMNS,
  })
  const title = element('h3', {}, 'Rules that take effect')
  const details = element('div', {}, picture, endpoints.node, title, rules, more)
  let turn = 0
  async function refresh(): Promise<void> {
    const mine = ++turn
    const path = await ask('path', {
      service,
      from: asked.from,
      ...(asked.to === '' ? {} : { to: asked.to }),
    })
    // The answer to an earlier question may come late.
    if (mine !== turn) return
    showTargets(targets, listAt(path, 'targets'), textAt(path, 'to'))
    replaceChildren(answer, textAt(path, 'answer'))
    replaceChildren(picture, ...drawn(fieldOf(path, 'drawing')))
    replaceChildren(rules, ...listAt(path, 'rules').map(ruleItem))
    replaceChildren(more, facts(pathFacts(path)))
    endpoints.show(listAt(path, 'endpoints'))
    // Without a path, empty tables would look like an empty answer.
    details.hidden = fieldOf(path, 'drawing') === undefined
  }
  form.addEventListener('submit', event => {
    event.preventDefault()
    Object.assign(asked, { from: client.value.trim(), to: targets.value })
    const mine = turn + 1
    refresh().catch((error: unknown) => {
      if (mine !== turn) return
      for (const stale of [picture, rules, more]) replaceChildren(stale)
      endpoints.show([])
      replaceChildren(answer, error instanceof NoAnswer ? error.message : 'the daemon does not answer')
    })
  })
  return {
    node: element(
      'div',
      {},
      element('p', {}, element('a', { href: '#services' }, 'All Services')),
      element('h2', {}, service),
      form,
      answer,
      details,
    ),
    everyMs: undefined,
    refresh,
  }
}

function connectionForm(from: string) {
  const targets = element('select')
  const client = element('input', { type: 'text', value: from, autocomplete: 'off', spellcheck: 'false' })
  const form = element(
    'form',
    { 'aria-label': 'Connection' },
    element('label', {}, 'Client ', client),
    element('label', {}, 'Frontend ', targets),
    element('button', {}, 'Show'),
    element('p', { class: 'hint' }, 'A client is outside, an address, pod/NAMESPACE/NAME or node/NAME.'),
  )
  return { form, targets, client }
}

const ENDPOINT_COLUMNS = [
  { title: 'Endpoint', cell: (row: unknown) => textAt(row, 'address') },
  { title: 'Share', isNumber: true, cell: shareText },
  {
    title: 'In or out',
    cell: (row: unknown) => `${fieldOf(row, 'isIn') === true ? 'in' : 'out'}: ${textAt(row, 'reason')}`,
  },
  { title: 'Node', cell: (row: unknown) => textAt(row, 'node') },
  { title: 'EndpointSlice', cell: (row: unknown) => textAt(row, 'slice') },
] as const

function shareText(row: unknown): string {
  const percent = numberAt(row, 'percent')
  return percent === undefined ? '' : `${percent} %`
}

function showTargets(select: HTMLSelectElement, targets: readonly unknown[], chosen: string): void {
  const options = targets.map(target =>
    element('option', { value: textAt(target, 'to') }, textAt(target, 'label')),
  )
  select.replaceChildren(...options)
  select.value = chosen
}

function ruleItem(rule: unknown): HTMLElement {
  return element('li', {}, `${textAt(rule, 'chain')}: `, element('code', {}, textAt(rule, 'text')))
}

function pathFacts(path: unknown): readonly (readonly [string, string])[] {
  const [reasons, unknown] = [listAt(path, 'reasons'), listAt(path, 'notKnown')]
  const more = numberAt(path, 'moreEndpoints') ?? 0
  return [
    ['Traffic policy', textAt(path, 'policy') === 'local' ? 'Local' : 'Cluster'],
    ['Reasons', reasons.map(String).join('; ')],
    ['Not known', unknown.map(String).join('; ')],
    ['More endpoints', more === 0 ? '' : numberText(more)],
  ]
}

/** Draws the shapes of `kprobe why -o svg`. */
function drawn(drawing: unknown): readonly Element[] {
  const shapes = listAt(drawing, 'shapes')
  if (shapes.length === 0) return []
  const size = (field: string) => `${numberAt(drawing, field) ?? 0}`
  const [width, height] = [size('width'), size('height')]
  const attributes = {
    viewBox: `0 0 ${width} ${height}`,
    width,
    height,
    role: 'img',
    'aria-label': textAt(drawing, 'title'),
  }
  return [svgElement('svg', attributes, ...shapes.flatMap(shapeElements))]
}

function shapeElements(shape: unknown): readonly Element[] {
  const size = (field: string) => `${numberAt(shape, field) ?? 0}`
  const place = { x: size('x'), y: size('y') }
  switch (textAt(shape, 'kind')) {
    case 'text': {
      const style = fieldOf(shape, 'isTitle') === true ? 'title' : undefined
      return [svgElement('text', { ...place, class: style }, textAt(shape, 'text'))]
    }
    case 'box':
      return [svgElement('rect', { ...place, width: size('width'), height: size('height'), rx: '4' })]
    case 'arrow': {
      const style = fieldOf(shape, 'isReached') === true ? undefined : 'out'
      return [svgElement('path', { d: textAt(shape, 'd'), class: style })]
    }
    default:
      return []
  }
}
