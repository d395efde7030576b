/** Manifests mark a value that an operator has to fill in: `REPLACE_ME_POD_CIDR`. Undefined when the text has no such mark. */
export function placeholderIn(text: string): string | undefined {
  return /REPLACE_ME\w*/.exec(text)?.[0]
}

export const PLACEHOLDER_REASON = 'is a placeholder of the manifest; put the real value in its place'
