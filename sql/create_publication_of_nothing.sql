create publication {publication} with (publish = 'insert');
