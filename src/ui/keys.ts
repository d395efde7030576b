/** The keys of k9s. */
export const KEYS: readonly (readonly [string, string])[] = [
  ['/', 'filter'],
  ['j, k', 'next row, row before'],
  ['Enter', 'open the row'],
  ['Esc', 'leave the filter, clear it, or go back'],
  ['1 to 6', 'a view'],
  ['?', 'this help'],
]

interface Actions {
  readonly help: () => void
  /** Opens the view of this number, from 0. */
  readonly view: (index: number) => void
  readonly back: () => void
}

/** Does what a key asks for; gives whether the browser should leave it alone. */
export function pressed(event: KeyboardEvent, { help, view, back }: Actions): boolean {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector('dialog[open]') !== null)
    return false
  const { target, key } = event
  const filter = document.querySelector<HTMLInputElement>('[data-filter]')
  if (target instanceof HTMLInputElement && target.type !== 'checkbox') {
    if (key === 'Escape') target.blur()
    else if (key === 'Enter' && target === filter) move(1)
    else return false
    return true
  }
  if (target instanceof HTMLSelectElement) return false
  if (key === '/' && filter !== null) filter.focus()
  else if (key === 'j' || key === 'k') move(key === 'j' ? 1 : -1)
  else if (key === '?') help()
  else if (/^[1-9]$/.test(key)) view(Number(key) - 1)
  else if (key === 'Escape') {
    if (filter === null || filter.value === '') back()
    else {
      filter.value = ''
      filter.dispatchEvent(new Event('input', { bubbles: true }))
    }
  } else return false
  return true
}

/** Moves the focus among the rows that can be opened: Enter follows the link of its row, as everywhere. */
function move(step: number): void {
  const rows = [...document.querySelectorAll<HTMLElement | SVGElement>('main [data-row]')].filter(
    row => row.getClientRects().length > 0,
  )
  const at = rows.findIndex(row => row.matches(':focus'))
  const next = at < 0 ? (step > 0 ? 0 : rows.length - 1) : Math.max(0, Math.min(rows.length - 1, at + step))
  rows[next]?.focus()
  rows[next]?.scrollIntoView({ block: 'nearest' })
}
